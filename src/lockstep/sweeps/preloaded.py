"""What the process that forks trials imports: most of what a trial does."""

import atexit
import gc
import os

from lockstep.launch.preload import import_training
from lockstep.system.hardware import has_started_cuda
from lockstep.system.process import die_with

die_with(os.getppid())  # the pipe by which it would notice is held by its forks, too
import_training()

HAS_STARTED_CUDA = has_started_cuda()
gc.freeze()  # what is shared with the forks is not touched, and so not copied, by their garbage collection
atexit.register(os._exit, 0)  # this process is done when its sweep is: freeing the modules of torch takes a second
