"""Counts GPUs, cores and memory of this machine or container.

torch is imported only when it is needed.
"""

import ctypes
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

ROOT = Path("/")  # parent folder of /proc and /sys
# The device files of the GPUs of AMD, WSL and Jetson have no number.
ASK_TORCH = {"kfd", "dxg", "nvhost-gpu", "nvgpu"}
SCRATCH = ("$SLURM_TMPDIR", "$TMPDIR", "$SCRATCH", "/scratch", "/local", "/tmp")


def num_visible_gpus() -> int:
    """Count the visible GPUs by device files and CUDA_VISIBLE_DEVICES.

    torch is imported only where device files do not show the number, because its import takes
    seconds.
    """
    device_files = os.listdir("/dev") if os.path.isdir("/dev") else []
    num_present = len([name for name in device_files if re.fullmatch(r"nvidia\d+", name)])
    if not num_present and not ASK_TORCH & set(device_files):
        return 0
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not num_present or "MIG" in (visible_devices or ""):
        import torch

        return torch.cuda.device_count()
    if visible_devices is None:
        return num_present
    num_visible = 0
    for entry in visible_devices.split(","):
        is_present = entry.strip().isdigit() and int(entry) < num_present
        if not is_present and not entry.startswith("GPU-"):
            break  # CUDA ignores all entries after the first invalid one.
        num_visible += 1
    return num_visible


def cores() -> list[int]:
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def num_cores() -> int:
    """Count the cores that this process may use.

    The quota of a container is rounded up.
    """
    counts = [len(cores())]
    for group in _control_groups():
        quota = _numbers(group / "cpu.max") or _numbers(
            group / "cpu.cfs_quota_us", group / "cpu.cfs_period_us"
        )
        if len(quota) == 2 and quota[0] > 0:  # Otherwise there is no quota.
            counts.append(-(-quota[0] // quota[1]))
    return min(counts)


def memory_bytes() -> int:
    """Return the memory in bytes of this machine, or of the container if that is less."""
    limits = [limit for group in _control_groups() for limit in _memory_limit(group)]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *limits])


def keep_freed_memory() -> None:
    """Let glibc keep blocks up to 32 MiB that this process frees.

    Does nothing if environment variables of the user configure glibc. By default, glibc returns the
    blocks to the kernel, which fills each page with zeros when it is used again. To keep larger
    blocks, too, would fragment the memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and not any(
        variable.startswith(("MALLOC_", "GLIBC_TUNABLES")) for variable in os.environ
    ):
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, the maximum of glibc
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, the maximum of an int


def available_bytes() -> int | None:
    """Return the free memory in bytes with the page cache, or None outside Linux.

    SC_AVPHYS_PAGES excludes the page cache.
    """
    meminfo = _fields(ROOT / "proc/meminfo")
    if not meminfo:
        return None
    free_bytes = [meminfo["MemAvailable:"] * 1024]
    for group in _control_groups():
        usage = _numbers(group / "memory.current") or _numbers(group / "memory.usage_in_bytes")
        for limit in _memory_limit(group) if usage else ():
            fields = _fields(group / "memory.stat")
            cached_bytes = sum(
                fields.get(f"total_{name}", fields.get(name, 0))
                for name in ("inactive_file", "active_file")
            )
            free_bytes.append(max(0, limit - usage[0] + cached_bytes))
    return min(free_bytes)


def scratch_disks() -> dict[str, dict[str, Any]]:
    """Return path and free bytes of the writable folders of `SCRATCH`, each path once."""
    # The first name of a path stays.
    paths = {os.path.expandvars(name): name for name in reversed(SCRATCH)}
    return {
        name: {"path": path, "free_bytes": shutil.disk_usage(path).free}
        for path, name in reversed(paths.items())
        if os.access(path, os.W_OK | os.X_OK)
    }


def _memory_limit(group: Path) -> list[int]:
    return _numbers(group / "memory.max") or _numbers(group / "memory.limit_in_bytes")


def _control_groups() -> Iterator[Path]:
    """Yield the folders of the control groups of this process, and of all groups above.

    The limits of the groups above count, too. Version 2 has one hierarchy, and version 1 has one
    per kind of limit. The path may be the one outside of the container. Then only the root exists,
    which is the group of the container.
    """
    file = ROOT / "proc/self/cgroup"
    for line in file.read_text().splitlines() if file.exists() else ():
        _, kind, path = line.split(":", 2)
        for folder in (PurePath(path), *PurePath(path).parents):
            yield ROOT / "sys/fs/cgroup" / kind / folder.relative_to("/")


def _numbers(*paths: Path) -> list[int]:
    """Read all numbers in some files.

    The result is empty if a file is missing or contains "max".
    """
    try:
        return [int(word) for path in paths for word in path.read_text().split()]
    except (OSError, ValueError):
        return []


def _fields(path: Path) -> dict[str, int]:
    """Read lines of a word and a number.

    The result is empty if the file does not exist.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in map(str.split, lines)}
