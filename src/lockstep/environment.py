"""What this process finds around it: GPUs, an outer launcher, versions and the commit. No torch until it is needed."""

import atexit
import contextlib
import dataclasses
import gc
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import lockstep
from lockstep import output, signals

FROZEN_COMMIT = "COMMIT"  # beside the code of a job
ROOT = Path(__file__).parents[2]
PACKAGES = ("torch", "torchvision", "lightning", "hydra-core", "torchmetrics", "tensorboard")
CUDA_ERROR_NOT_INITIALIZED = 3
# device files of AMD's GPUs, of WSL's, and of those of Jetson, which have no number
ASK_TORCH = {"kfd", "dxg", "nvhost-gpu", "nvgpu"}


@dataclass(frozen=True)
class World:
    """The place of this process among those an outer launcher (torchrun, srun) started."""

    launcher: str
    rank: int
    local_rank: int
    node_rank: int
    world_size: int
    # where the launcher says nothing of a place to meet (srun):
    step: str = ""  # this start of the job, unlike all others: job-restart-step
    address: tuple[str, int] | None = None  # host and port on which all ranks come without talking
    num_gpus_on_node: int | None = None  # of all tasks of the step on this node together, where SLURM says it


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """For imports: what they allocate stays. To look through it for garbage is a fifth of their time, later 0.1 s."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()


def leave(command: Callable[[], int]) -> NoReturn:
    """Do `command`, then what is registered for the exit, and exit with its code.

    No more: freeing the modules of torch one by one takes over a second, and a crash there would change the code.
    """
    output.outlive()
    try:
        try:
            code = command()
        except SystemExit as left:
            if not isinstance(left.code, int):  # a text, which Python prints
                raise
            code = left.code
        atexit._run_exitfuncs()
    except KeyboardInterrupt:
        signals.say_ended(signal.SIGINT)
        code = 128 + signal.SIGINT
    except signals.Ended as ended:
        signals.say_ended(ended.number, "; ".join(getattr(ended, "__notes__", ())))
        code = 128 + ended.number
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


def num_visible_gpus() -> int:
    """GPUs a process may use, told from device files and CUDA_VISIBLE_DEVICES: asking torch costs seconds.

    torch is asked where there are device files that do not tell.
    """
    names = os.listdir("/dev") if os.path.isdir("/dev") else []
    num_present = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if num_present and (visible is None or "MIG" not in visible):
        return num_present if visible is None else _num_named(visible.split(","), num_present)
    if num_present or ASK_TORCH & set(names):
        import torch

        return torch.cuda.device_count()
    return 0


def _num_named(entries: Sequence[str], num_present: int) -> int:
    """How many GPUs the entries of CUDA_VISIBLE_DEVICES name to CUDA: those before the first that is no GPU.

    None where a GPU is named twice. Entries are all numbers, of which CUDA reads the digits they begin with, or all
    UUIDs, which are taken to be those of this machine.
    """
    found: list[str] = []
    for entry in entries:
        number = re.match(r"\s*\+?(\d+)", entry)
        if entries[0].startswith("GPU-"):
            name = entry if entry.startswith("GPU-") else None
        else:
            name = str(int(number[1])) if number and int(number[1]) < num_present else None
        if name is None:
            break
        if name in found:
            return 0
        found.append(name)
    return min(len(found), num_present)


def has_started_cuda() -> bool:
    """Whether something in this process has started CUDA's driver, which then works in no fork of the process.

    torch.cuda.is_initialized() knows neither of other libraries nor of torch.cuda.is_available(), which start it, too.
    """
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1")  # loading it starts nothing
    except OSError:
        return False
    return driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != CUDA_ERROR_NOT_INITIALIZED


def cores() -> list[int]:
    """Numbers of the cores this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """How many cores this process may use."""
    return len(cores())


def memory_bytes() -> int:
    """Memory of this machine, or of the container where that may have less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
            total = min(total, int(Path(path).read_text()))
    return total


def outer_world(environ: Mapping[str, str]) -> World | None:
    """The processes an outer launcher started, this one among them; None where this process stands alone.

    A SLURM batch script or srun step counts also with a single task; a shell inside an allocation does not.
    `address` and `step` are None and "" where MASTER_ADDR is set: then torch's own variables say where to meet.
    """

    def number(*names: str, default: int = 0) -> int:
        return next((int(environ[name]) for name in names if environ.get(name)), default)

    if "LOCAL_RANK" in environ and "WORLD_SIZE" in environ and "RANK" in environ:
        return World(
            "torchrun", number("RANK"), number("LOCAL_RANK"), number("GROUP_RANK"), number("WORLD_SIZE", default=1)
        )
    if "SLURM_JOB_ID" in environ and "SLURM_PROCID" in environ:
        num_tasks = number("SLURM_STEP_NUM_TASKS", default=1)  # SLURM_NTASKS counts what a batch script may yet start
        world = World(
            "srun",
            number("SLURM_PROCID"),
            number("SLURM_LOCALID"),
            number("SLURM_NODEID"),
            num_tasks,
            num_gpus_on_node=number("SLURM_GPUS_ON_NODE") if environ.get("SLURM_GPUS_ON_NODE") else None,
        )
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
        if "MASTER_ADDR" in environ or nodes is None:
            return world
        job, step = number("SLURM_JOB_ID"), number("SLURM_STEP_ID", "SLURM_STEPID")
        return dataclasses.replace(
            world,
            step=f"{job}-{number('SLURM_RESTART_COUNT')}-{step}",
            address=(first_node(nodes), step_port(job, step)),
        )
    return None


def first_node(nodes: str) -> str:
    """The first name of a SLURM node list, e.g. "r1n07" of "r[1-2]n[07-09,12],login"."""
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", nodes).partition(",")[0]


def step_port(job: int, step: int) -> int:
    """A port below those that kernels hand out. No two of 15,000 steps of a job share one, nor jobs in a row."""
    return 15000 + (32 * job + step) % 15000


def describe() -> dict[str, Any]:
    """Versions, devices, host and commit, as plain values for environment.json. Imports torch."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": {**{name: version_of(name) for name in PACKAGES}, "lockstep": lockstep.__version__},
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "commit": commit(),
        "command": without_secrets(sys.argv),
    }


def version_of(package: str) -> str | None:
    """The version that pip installed; None for a package that is used from its source folder or is missing."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command line, to be kept for people, without what may be a token: `notify`, queries of URLs."""

    def hidden(word: str) -> str:
        key = word.partition("=")[0]
        if key.lstrip("+").partition(".")[0] == "notify":
            return f"{key}=..."
        return re.sub(r"\?.*", "?...", word, flags=re.DOTALL) if "://" in word else word

    return [hidden(word) for word in words]


def cpu_name() -> str:
    """What the CPU calls itself."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def commit(root: Path = ROOT) -> str | None:
    """Commit of the source tree, marked "+changes" when files differ from it; None outside git."""
    with contextlib.suppress(FileNotFoundError):  # a copy that a job runs, perhaps inside a repository
        return (root / FROZEN_COMMIT).read_text().strip() or None
    try:
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        changes = subprocess.run(
            ["git", "-C", root, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
