"""The fork server of a test session is that of the product.

It also imports what commands and most trainings do.
"""

import gc
import signal

# before the product asks: under nohup it would be ignored, also by the trainings that tests send it
# to
signal.signal(signal.SIGHUP, signal.SIG_DFL)

import lockstep.launch.server  # noqa: E402, I001  # first: it silences the process

import hydra  # noqa: E402, F401
import scipy.optimize  # noqa: E402
import scipy.stats  # noqa: E402, F401
import sklearn.datasets  # noqa: E402
import sklearn.linear_model  # noqa: E402, F401
import torchvision.models  # noqa: E402, F401

import lockstep.cli.help  # noqa: E402
import lockstep.cli.main  # noqa: E402
import lockstep.cli.train  # noqa: E402
import lockstep.sweeps.command  # noqa: E402
import lockstep.callbacks.plots  # noqa: E402, F401

gc.freeze()  # again: the first collection in each fork would visit what was imported since
