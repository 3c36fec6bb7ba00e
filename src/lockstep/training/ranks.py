"""The device of a rank, and what all ranks must agree on."""

import torch

from lockstep.config import storage
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.distributed.collectives import gather_objects, is_distributed
from lockstep.system.launcher import World


def agree(config: Config, world_size: int) -> None:
    """Check that all ranks have the same configuration and world size. Raises ConfigError on all ranks."""
    if not is_distributed():
        return
    mine = (storage.fingerprint(config), world_size)
    for rank, other in enumerate(gather_objects(mine)):
        if other != mine:
            error = f"rank {rank} has another configuration or world size, {other}, than this process, {mine}: "
            raise ConfigError([error + "start every process with the same command and the same files"])


def chosen_device(config: Config, gpus: tuple[int, ...], world: World) -> torch.device:
    """Return the device of this process, made torch's current one."""
    if not gpus:
        return torch.device("cpu")
    number = gpus[world.local_rank]
    if torch.cuda.device_count() <= number:
        raise RuntimeError(
            f"trainer.devices={config.trainer.devices}: torch {torch.__version__} finds {torch.cuda.device_count()} "
            "GPUs here; is it a build without CUDA, or the driver too old? strategy=cpu trains without GPUs."
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
