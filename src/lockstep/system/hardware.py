"""What this process finds around it: GPUs, an outer launcher, versions and the commit. No torch until it is needed."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

CUDA_ERROR_NOT_INITIALIZED = 3
# device files of AMD's GPUs, of WSL's, and of those of Jetson, which have no number
ASK_TORCH = {"kfd", "dxg", "nvhost-gpu", "nvgpu"}


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
    names: list[str] = []
    for entry in entries:
        number = re.match(r"\s*\+?(\d+)", entry)
        if entries[0].startswith("GPU-"):
            name = entry if entry.startswith("GPU-") else None
        else:
            name = str(int(number[1])) if number and int(number[1]) < num_present else None
        if name is None:
            break
        if name in names:
            return 0
        names.append(name)
    return min(len(names), num_present)


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
