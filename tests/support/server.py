"""The fork server of a test session: that of the product, which also imports what commands do."""

import lockstep.launch.server  # noqa: I001  # first: it silences the process

import hydra  # noqa: F401

import lockstep.cli.help
import lockstep.cli.main
import lockstep.cli.train
import lockstep.sweeps.command
import lockstep.callbacks.plots  # noqa: F401
