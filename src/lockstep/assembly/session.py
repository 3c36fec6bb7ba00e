"""One process of a job: its process group, device and precision.

It is used for training, evaluation and prediction.
"""

from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import distributed as dist

from lockstep.assembly import checkpoints
from lockstep.assembly.agreement import agree, together
from lockstep.assembly.checkpoints import Chosen
from lockstep.assembly.precision import resolve_device, resolve_precision, set_tf32
from lockstep.assembly.refusals import explain_error
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.errors import ConfigError, Error, Refused, config_error
from lockstep.config.schema.configuration import Config
from lockstep.data.splits import ImageError
from lockstep.distributed import collectives
from lockstep.distributed.collectives import gather_objects
from lockstep.models.step import NonFiniteGradient, NonFiniteLoss
from lockstep.runs.folder import RunFolder
from lockstep.system.launcher import World
from lockstep.system.output import print_error
from lockstep.tasks.scores import MetricError

if TYPE_CHECKING:
    from lockstep.distributed.virtual_shards import VirtualShards

T = TypeVar("T")
ADVICE = (
    "Lower optimizer.lr: divide it by 10 until the loss falls. "
    "Then try trainer.gradient_clip_norm=1 and trainer.precision=float32. "
    "If it is the first step, look for NaN in the images, the network and the task."
)


@dataclass(frozen=True)
class Session:
    """One process of a job: its configuration, rank, device and precision."""

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
    exit_stack: ExitStack  # It is closed at the end, also after an error.
    shards: "VirtualShards | None" = None  # set by trainer.virtual_shards

    @property
    def is_distributed(self) -> bool:
        """True with a process group, even if it has a single process."""
        return dist.is_initialized()

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self.config.strategy.timeout_s)

    @property
    def is_shown(self) -> bool:
        """Return whether this process prints, which is rank 0 unless the run is silent."""
        return self.rank == 0 and not self.config.silent

    def on_rank_0(self, work: Callable[[], T]) -> T | None:
        """Return `work()` on rank 0, and None on the others, which wait as in `together`."""
        return together(lambda: work() if self.rank == 0 else None)

    @property
    def worker_weights(self) -> tuple[int, ...]:
        """Relative shard size of every rank."""
        if self.shards is not None:
            return self.shards.shards_per_rank
        worker_weights = self.config.trainer.worker_weights
        return (1,) * self.world_size if worker_weights is None else tuple(worker_weights)


@contextmanager
def open_session(folder: RunFolder, config: Config, world: World | None) -> Iterator[Session]:
    """Join the workers of a job, check that they agree on it, and leave them at the end.

    Raises ConfigError before any work if ranks differ in configuration or world size. Replaces
    errors of memory and disks by Refused.
    """
    workers = resolve_workers(config)
    environment = LightningEnvironment()
    if world is not None:
        # A single worker needs no process group.
        from lockstep.assembly.process_group import JoinedEnvironment, join

        join(config, workers, world, folder)
        environment = JoinedEnvironment(world)
    world = world or World("", rank=0, local_rank=0, node_rank=0, world_size=1)
    device = resolve_device(config, workers.gpus, world)
    agree(config, world.world_size)
    choices = gather_objects(resolve_precision(config, device))
    # GPUs may differ. No worker uses a precision that one of them lacks.
    precision, reason = next((choice for choice in choices if choice[0] == "float32"), choices[0])
    set_tf32(precision == "tf32")
    with ExitStack() as stack:
        session = Session(
            config=config,
            folder=folder,
            rank=world.rank,
            local_rank=world.local_rank,
            world_size=world.world_size,
            num_local=workers.num_local,
            device=device,
            gpus=workers.gpus,
            precision=precision,
            precision_reason=reason,
            environment=environment,
            exit_stack=stack,
        )
        if (count := config.trainer.virtual_shards) is not None:
            from lockstep.distributed.virtual_shards import VirtualShards

            shards = stack.enter_context(
                VirtualShards(count, session.worker_weights, torch.get_num_threads())
            )
            session = replace(session, shards=shards)
        try:
            yield session
        except ImageError as error:  # It can be raised while images are streamed.
            raise ConfigError(*(Error("damaged", "", line) for line in error.errors)) from error
        # It is raised by a custom module, which logs during the training.
        except MetricError as error:
            raise config_error("failed", "", str(error)) from error
        except Exception as error:
            message = _explain(error, folder, world)
            if message is not None:
                raise Refused(message) from error
            raise
        # After a failure the group stays until the process ends, because the failure must be
        # recorded before other ranks notice it.
        if dist.is_initialized():
            gather_objects(None)  # No rank exits while another one still sends.
            collectives.leave()


def agreed_checkpoint(session: Session, requested_path: Path) -> Chosen:
    """Return the checkpoint that rank 0 chooses. Every rank must call it.

    It is the one at `requested_path`, or another one if that is damaged, which rank 0 prints.
    Raises ConfigError on all ranks if none is intact.
    """
    own_choice = session.on_rank_0(
        lambda: checkpoints.choose_checkpoint(session.folder, requested_path)
    )
    checkpoint = gather_objects(own_choice)[0]
    assert checkpoint is not None
    if checkpoint.note and session.rank == 0:
        print_error(checkpoint.note)
    return checkpoint


def _explain(error: Exception, folder: RunFolder, world: World) -> str | None:
    """Explain the error that ended a run, or return None for other errors.

    It explains a bad loss, with its samples after a blank line. It also explains the end of a
    debugger, and a lack of memory or disk space.
    """
    if isinstance(error, NonFiniteGradient):
        return str(error)
    if isinstance(error, NonFiniteLoss):
        summary, samples = str(error).splitlines()
        return f"{summary}\n{ADVICE}\n\n{samples}"
    if isinstance(error.__cause__ or error, BdbQuit):
        if world.world_size == 1:
            return "the debugger was quit"
        return "breakpoint() needs a run of one worker: set trainer.devices=1"
    return explain_error(error, folder.path, f"rank {world.rank} of {world.world_size}")
