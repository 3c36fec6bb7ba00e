"""The fork server of a test session: the product's own, with what commands import beside."""

import lockstep.launch.server  # noqa: I001  # first: it silences the process

import hydra  # noqa: F401

import lockstep.cli.help
import lockstep.cli.main
import lockstep.cli.train
import lockstep.sweeps.command
import lockstep.callbacks.plots  # noqa: F401
