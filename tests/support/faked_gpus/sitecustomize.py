"""Makes the process that starts trials believe in four GPUs; the trials themselves find none, and train on the CPU.

With FAKED_IMPORT_USES_CUDA, the process that forks trials asks CUDA for its devices, as some library might.
"""

import os
import sys

if any(word.endswith("train.py") for word in sys.orig_argv):
    from lockstep.system import hardware

    hardware.num_visible_gpus = lambda: 4

if "FAKED_IMPORT_USES_CUDA" in os.environ and any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    import torch

    torch._C._cuda_getDeviceCount()
