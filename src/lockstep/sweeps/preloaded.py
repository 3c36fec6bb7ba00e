"""What a trial imports before it reads a word of its own, and most of them later, for the process that forks trials."""

import atexit
import gc
import os

from lockstep.launch.spawn import die_with
from lockstep.system.hardware import has_started_cuda
from lockstep.system.lazy_imports import lazy
from lockstep.system.process import no_garbage_collection

die_with(os.getppid())  # the pipe by which it would notice is held by its forks, too
with no_garbage_collection(), lazy():
    import lockstep.training.train  # noqa: F401
    from lockstep.callbacks import Curves, Pictures, SplitTensorBoardLogger  # noqa: F401
    from lockstep.data import digits  # noqa: F401
    from lockstep.models import ResNet18  # noqa: F401
    from lockstep.tasks import Classification  # noqa: F401

HAS_STARTED_CUDA = has_started_cuda()
gc.freeze()  # what is shared with the forks is not touched, and so not copied, by their garbage collection
atexit.register(os._exit, 0)  # this process is done when its sweep is: freeing the modules of torch takes a second
