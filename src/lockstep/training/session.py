"""What training, evaluation and prediction share: the process group, the device, the precision, and their assembly."""

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import distributed as dist

from lockstep.config import errors
from lockstep.config.schema import Config
from lockstep.config.workers import resolve_workers
from lockstep.data.images.decode import ImageError
from lockstep.distributed import collectives
from lockstep.distributed.collectives import gather_objects
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.tasks.scores import MetricError
from lockstep.training import checkpoints, refusals
from lockstep.training.checkpoints import Chosen
from lockstep.training.precision import chosen_precision, set_tf32
from lockstep.training.process_group import JoinedEnvironment, agree, chosen_device, join
from lockstep.training.staging import together


@dataclass(frozen=True)
class Session:
    """One process of a job: its configuration, its place among the workers, and what it computes on."""

    config: Config
    folder: RunFolder
    rank: int
    local_rank: int
    world_size: int
    num_local: int
    device: torch.device
    gpus: tuple[int, ...]
    precision: str
    precision_reason: str
    environment: ClusterEnvironment
    held: contextlib.ExitStack  # what is let go of at the end, however that comes

    @property
    def is_distributed(self) -> bool:
        """Whether there is a process group, also one of a single process."""
        return dist.is_initialized()

    @property
    def timeout(self) -> timedelta:
        """A collective that takes longer ends the run."""
        return timedelta(seconds=self.config.strategy.timeout_s)

    @property
    def loads(self) -> tuple[int, ...]:
        """Relative share of every rank."""
        return tuple(self.config.trainer.loads or [1] * self.world_size)


@contextlib.contextmanager
def opened(folder: RunFolder, config: Config, world: World | None) -> Iterator[Session]:
    """Join the workers of a job, agree with them on what it is, and leave them at the end.

    Raises ConfigError before any work when ranks differ in configuration or in their number, and Refused in place of
    what an allocator raises or a disk refuses.
    """
    workers = resolve_workers(config)
    rank, world_size = (world.rank, world.world_size) if world is not None else (0, 1)
    if world is not None:
        join(config, world, folder)
    device = chosen_device(config, workers.gpus, world)
    precision, reason = chosen_precision(config, device)
    set_tf32(precision == "tf32")
    agree(config, world_size)
    with contextlib.ExitStack() as held:
        session = Session(
            config=config,
            folder=folder,
            rank=rank,
            local_rank=world.local_rank if world is not None else 0,
            world_size=world_size,
            num_local=workers.num_local,
            device=device,
            gpus=workers.gpus,
            precision=precision,
            precision_reason=reason,
            environment=JoinedEnvironment(world) if world is not None else LightningEnvironment(),
            held=held,
        )
        try:
            yield session
        except ImageError as error:  # met while streaming
            raise errors.ConfigError(error.errors) from error
        except MetricError as error:  # of a module of the user's own, which shows what it measures when it has done so
            raise errors.ConfigError([str(error)]) from error
        except Exception as error:
            text = refusals.explained(error, folder.path, f"rank {rank} of {world_size}")
            if text is not None:
                raise refusals.Refused(text) from error
            raise
        # after a failure the group stays until the process ends: the failure must be on record before others notice it
        if dist.is_initialized():
            gather_objects(None)  # nobody leaves while another still talks
            collectives.leave()


def quiet() -> None:
    """One voice: Lightning's banners off, and warnings that our own arithmetic answers."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        r".*sync_dist=True.*",  # our values are global already; the mean over ranks would be wrong
        r".*The ``compute`` method of metric .* was called before the ``update``.*",  # an empty shard counts nothing
        r".*does not have many workers.*",  # a batch is one gather: workers would only copy it
        r".*passed in a `val_dataloader` but have no `validation_step`.*",  # a module of the user's own may have none
        r".*smaller than the logging interval.*",  # the epoch's means are logged anyway
        r".*WeightAveraging callback, but loading.*",  # evaluation takes the averaged weights, which is what we want
        r".*callbacks used to create the checkpoint need to be provided.*",  # an evaluation needs none of them
        r".*could not find the monitored key.*",  # before the first validation; the check knows all that is measured
        r".*Checkpoint directory .* exists and is not empty.*",  # a resume goes on in its folder
        r".*The `srun` command is available.*",  # whether a run is one of srun's is ours to find
        r".*`broadcast_buffers` is deprecated.*",  # its successor is not in torch 2.11 to 2.14, 2026-11-21
        r".*Please use the new API settings to control TF32.*",  # see set_tf32
        r".*in eval mode at the start of training.*",  # batch norms of what is frozen
        r".*LeafSpec.* is deprecated.*",  # Lightning 2.6.6 on torch 2.15, 2026-11-21
    ):
        warnings.filterwarnings("ignore", message=message)
    threading.excepthook = _show_thread_failure


def _show_thread_failure(failed: threading.ExceptHookArgs) -> None:
    """Leave out what TensorBoard's writing thread raises: its writer raises the same in the training."""
    if type(failed.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failed)


def checkpoint(session: Session, wanted: Path) -> Chosen:
    """The checkpoint to load, as rank 0 finds it: `wanted`, or another one where that is damaged, which rank 0 tells.

    Every rank must call it. Raises ConfigError on all ranks where none is whole.
    """
    own_choice = together(lambda: checkpoints.chosen(session.folder, wanted) if session.rank == 0 else None)
    chosen = gather_objects(own_choice)[0]
    assert chosen is not None
    if chosen.note and session.rank == 0:
        print(chosen.note, file=sys.stderr, flush=True)
    return chosen
