"""The settings of a trained network for the machine that uses it, which need not be one of those that trained it."""

from lockstep.config.schema import Config
from lockstep.system import hardware


def here(saved: Config, *, devices: int | list[int] | None, strategy: str | None) -> Config:
    """The settings of a run, for `devices` and `strategy` where they are given; not checked.

    On a CPU tf32 becomes float32: a CPU computes in full what TF32 rounds.
    """
    strategy = strategy or saved.strategy.name
    trainer = {}
    if devices is not None or saved.trainer.num_nodes > 1:  # here is one machine
        trainer |= {"devices": devices or saved.trainer.devices, "loads": None, "num_nodes": 1}
    if saved.trainer.precision == "tf32" and (strategy == "cpu" or not hardware.num_visible_gpus()):
        trainer["precision"] = "float32"
    return saved.model_copy(
        update={
            "trainer": saved.trainer.model_copy(update=trainer),
            # the network is that of the machines that trained
            "strategy": saved.strategy.model_copy(update={"name": strategy, "interface": None}),
        }
    )
