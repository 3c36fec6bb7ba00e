"""Makes the process that starts trials count four GPUs; the trials find none and train on the CPU."""

import sys

if any(word.endswith("train.py") for word in sys.orig_argv):
    from lockstep.system import hardware

    hardware.num_visible_gpus = lambda: 4
