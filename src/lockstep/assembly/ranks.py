"""The device of a rank, and what all ranks must agree on."""

import torch

from lockstep.config.errors import ConfigError, Error
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.distributed.collectives import gather_objects, is_distributed
from lockstep.system.launcher import World


def agree(config: Config, world_size: int) -> None:
    """Check that all ranks have the same configuration and world size. Raises ConfigError on all ranks."""
    if not is_distributed():
        return
    mine = (config_file.fingerprint(config), world_size)
    for rank, other in enumerate(gather_objects(mine)):
        if other != mine:
            problem = f"has another configuration or world size, {other}, than this process, {mine}"
            raise ConfigError(Error(f"rank {rank}", problem, "start all processes with the same command and files"))


def chosen_device(config: Config, gpus: tuple[int, ...], world: World) -> torch.device:
    """Return the device of this process, made torch's current one."""
    if not gpus:
        return torch.device("cpu")
    number = gpus[world.local_rank]
    if torch.cuda.device_count() <= number:
        problem = f"torch {torch.__version__} finds {torch.cuda.device_count()} GPUs (no CUDA in it, or an old driver?)"
        raise RuntimeError(f"trainer.devices={config.trainer.devices}: {problem}: strategy=cpu needs none.")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)
