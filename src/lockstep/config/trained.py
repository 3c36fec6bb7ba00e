"""The settings of a trained network for the machine that uses it, which need not be one of those that trained it."""

from typing import Any

from lockstep.config import storage
from lockstep.config.schema import Config
from lockstep.system import hardware


def tree_here(saved: Config, *, devices: int | list[int] | None, strategy: str | None) -> dict[str, Any]:
    """The settings of a run as plain values, for `devices` and `strategy` where they are given.

    On a CPU tf32 becomes float32: a CPU computes in full what TF32 rounds.
    """
    tree = storage.to_tree(saved)
    if devices is not None or saved.trainer.num_nodes > 1:  # here is one machine
        tree["trainer"] |= {"devices": devices or saved.trainer.devices, "loads": None, "num_nodes": 1}
    tree["strategy"]["interface"] = None  # of the machines that trained
    if strategy is not None:
        tree["strategy"]["name"] = strategy
    is_cpu = tree["strategy"]["name"] == "cpu" or not hardware.num_visible_gpus()
    if tree["trainer"]["precision"] == "tf32" and is_cpu:
        tree["trainer"]["precision"] = "float32"
    return tree
