"""A fork server without the imports of a training, for workers that need none of them."""

from lockstep.launch import worker

worker.import_training = lambda: None

import lockstep.launch.server  # noqa: E402, F401
