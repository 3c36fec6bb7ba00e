"""Reads the rank and world size that srun, torchrun or Lockstep gave to this process."""

import dataclasses
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

# A launcher sets these variables, which torch, Lightning and its metrics also read.
NUMBERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
)
# The command of a job has this variable, with the copy of its project.
PROJECT = "LOCKSTEP_PROJECT"


@dataclass(frozen=True)
class World:
    """The rank of this process, and the facts that its launcher provides about all processes.

    The launcher is torchrun, srun or Lockstep.
    """

    launcher: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    num_local: int = 1  # Workers of this node, or 0 if unknown; nodes may differ
    # The next two are set where the launcher names no address (srun).
    step: str = ""  # job-restart-step, unique for each start
    address: tuple[str, int] | None = None  # Host and port, which every rank computes for itself
    # This counts the GPUs of all tasks of the step on this node, where SLURM reports it.
    num_gpus_on_node: int | None = None
    # On rank 0, this is the descriptor of the socket on which it opens the store.
    listener: int | None = None

    @property
    def is_on_one_machine(self) -> bool:
        return self.num_local == self.world_size


def outer_world(environ: Mapping[str, str]) -> World | None:
    """Read the world from the variables of the launcher, or return None without one.

    A SLURM batch script or srun step counts also with a single task, whereas a shell inside an
    allocation does not. `address` is None and `step` is "" where MASTER_ADDR is set, because the
    variables of torch then have the address. Raises ValueError for a variable whose value is not a
    whole number.
    """
    if invalid_variables := [
        f"{variable}={environ[variable]}"
        for variable in NUMBERS
        if not environ.get(variable, "0").isdecimal()
    ]:
        raise ValueError(
            f"{', '.join(invalid_variables)} in the environment must be a whole number: "
            "unset it, or use torchrun"
        )

    def number(variable: str, default: int = 0) -> int:
        return int(environ.get(variable) or default)

    if "LOCAL_RANK" in environ and "WORLD_SIZE" in environ and "RANK" in environ:
        return World(
            "torchrun",
            number("RANK"),
            number("LOCAL_RANK"),
            number("GROUP_RANK"),
            number("WORLD_SIZE", 1),
            number("LOCAL_WORLD_SIZE"),
        )
    if "SLURM_JOB_ID" in environ and "SLURM_PROCID" in environ:
        node = number("SLURM_NODEID")
        num_local = counts_of_nodes(environ.get("SLURM_STEP_TASKS_PER_NODE") or "1")
        num_gpus = environ.get("SLURM_GPUS_ON_NODE")
        world = World(
            "srun",
            number("SLURM_PROCID"),
            number("SLURM_LOCALID"),
            node,
            # SLURM_NTASKS counts the tasks that a batch script may still start.
            number("SLURM_STEP_NUM_TASKS", 1),
            num_local[node],
            num_gpus_on_node=int(num_gpus) if num_gpus else None,
        )
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
        if "MASTER_ADDR" in environ or nodes is None:
            return world
        job = number("SLURM_JOB_ID")
        step = number("SLURM_STEP_ID", number("SLURM_STEPID"))
        return dataclasses.replace(
            world,
            step=f"{job}-{number('SLURM_RESTART_COUNT')}-{step}",
            address=(first_node(nodes), step_port(job, step)),
        )
    return None


def shared_world(environ: MutableMapping[str, str]) -> World | None:
    """Return the world of one of several processes of a launcher, which compute together.

    For a single process, returns None and deletes the variables of the launcher. Such a process
    starts its own workers, and sets their ranks.
    """
    world = outer_world(environ)
    if world is not None and world.world_size > 1:
        return world
    for variable in ("LOCAL_RANK", "SLURM_PROCID"):
        environ.pop(variable, None)
    return None


def start_once(command: str, environ: MutableMapping[str, str]) -> None:
    """Raise ValueError in one of several processes of a launcher.

    The command starts its own workers.
    """
    if (world := shared_world(environ)) is not None:
        count = world.world_size
        raise ValueError(
            f"{world.launcher} started {count} processes of lockstep {command}, which starts its "
            f"own workers: start it without {world.launcher}; "
            f"train -m takes trainer.devices={count}."
        )


def first_node(nodes: str) -> str:
    """Return the first name of a SLURM node list, e.g. "r1n07" of "r[1-2]n[07-09,12],login"."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]


def counts_of_nodes(counts: str) -> list[int]:
    """Return the tasks or cores of each node from SLURM's text, e.g. [3, 3, 1] of "3(x2),1"."""
    return [
        int(count)
        for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
        for _ in range(int(times or 1))
    ]


def step_port(job: int, step: int) -> int:
    """Return a port below the ephemeral range.

    It is distinct for consecutive jobs, and for 15,000 steps of a job.
    """
    return 15000 + (32 * job + step) % 15000
