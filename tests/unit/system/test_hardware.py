"""GPUs, cores and memory of a machine or container."""

import itertools
from pathlib import Path

import pytest
import torch

from lockstep.launch import worker
from lockstep.system import hardware

# -- GPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "num_gpus"),
    [
        (None, 4),
        (" 3 , 1", 2),
        ("-1", 0),
        ("0,-1,1", 1),  # CUDA stops at the first invalid entry
        ("0,1,7,2", 2),
        ("NoDevFiles", 0),
        ("GPU-1a,GPU-2b", 2),
    ],
)
def test_visible_gpus_as_cuda(
    variable: str | None, num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "os.listdir", lambda path: ["null", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"]
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert hardware.num_visible_gpus() == num_gpus
    # what torch makes of the variable before it asks the driver
    entries = torch.cuda._parse_visible_devices()
    real = itertools.takewhile(lambda entry: isinstance(entry, str) or entry < 4, entries)
    assert len(list(real)) == num_gpus


@pytest.mark.parametrize(
    "files", [["kfd"], ["dxg"], ["nvgpu"], ["nvidia0", "MIG"], ["null", "nvram"]]
)
def test_visible_gpus_from_torch(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD, WSL, Jetson, and a partitioned GPU."""
    monkeypatch.setattr("os.listdir", lambda path: files)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a/1/0" if "MIG" in files else "0")
    assert hardware.num_visible_gpus() == (0 if "nvram" in files else 3)


# -- limits of containers --------------------------------------------------------------------------


def machine(path: Path, groups: str, files: dict[str, str]) -> Path:
    """Fake a system whose process is in `groups`.

    It has 64 GiB, of which 32 are free, and files below /sys/fs/cgroup.
    """
    meminfo = f"MemTotal: {64 * 2**20} kB\nMemAvailable: {32 * 2**20} kB\n"
    texts = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": groups, "proc/meminfo": meminfo, **texts}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),  # rounded up, as in the JVM and Go
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/\n", {"cpu.max": "12800000 100000\n"}, 64),  # more than the machine has
        ("0::/\n", {}, 64),
        # that of a group above
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        # outside of the namespace that is seen
        ("0::/../host/b\n", {"cpu.max": "200000 100000\n"}, 2),
        (
            "4:cpu,cpuacct:/\n",
            {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            2,
        ),
        # the path on the host, which a container does not see: its own group is the root of the
        # mount
        (
            "4:cpu:/docker/3f\n",
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "10000"},
            5,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_num_cores_container_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(hardware, "ROOT", machine(tmp_path, groups, files))
    monkeypatch.setattr(hardware, "cores", lambda: list(range(64)))
    assert hardware.num_cores() == count


def memory(folder: str, limit: int | str, used: int, cached: int) -> dict[str, str]:
    """Files of version 2 in GiB; `cached` of what is used are files, half of them read often."""
    stat = f"anon 5\ninactive_file {cached * 2**29}\nactive_file {cached * 2**29}\n"
    limit = limit if isinstance(limit, str) else str(limit * 2**30)
    return {
        f"{folder}memory.max": limit,
        f"{folder}memory.current": str(used * 2**30),
        f"{folder}memory.stat": stat,
    }


def old_memory(folder: str, limit: str, used: int, cached: int) -> dict[str, str]:
    """Those of version 1, in which a plain name counts without the groups below."""
    stat = (
        "inactive_file 1\nactive_file 1\n"
        f"total_inactive_file {cached * 2**30}\ntotal_active_file 0\n"
    )
    names = {"limit_in_bytes": limit, "usage_in_bytes": str(used * 2**30), "stat": stat}
    return {f"memory/{folder}memory.{name}": text for name, text in names.items()}


@pytest.mark.parametrize(
    ("groups", "files", "total", "available"),
    [
        ("0::/\n", memory("", 8, 3, 0), 8, 5),
        ("0::/\n", memory("", 8, 8, 6), 8, 6),  # cached files are free
        ("0::/\n", memory("", 8, 9, 0), 8, 0),  # the limit was lowered
        ("0::/\n", memory("", "max\n", 8, 0), 64, 32),
        ("0::/a/b\n", {**memory("a/b/", 8, 1, 0), **memory("a/", 6, 5, 0)}, 6, 1),
        ("4:memory:/docker/3f\n", old_memory("", str(8 * 2**30), 7, 4), 8, 5),
        # which version 1 has in place of "max"
        ("4:memory:/\n", old_memory("", str(2**63 - 4096), 7, 0), 64, 32),
    ],
)
def test_memory_container_limit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    files: dict[str, str],
    total: int,
    available: int,
) -> None:
    monkeypatch.setattr(hardware, "ROOT", machine(tmp_path, groups, files))
    monkeypatch.setattr(
        "os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * 2**18}.__getitem__
    )
    assert hardware.memory_bytes() == total * 2**30
    assert hardware.available_bytes() == available * 2**30


# -- lockstep machine ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "default", "expected"), [(None, 64, [2]), (None, 2, []), ("8", 8, [])]
)
def test_torch_threads_container_quota(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, default: int, expected: list[int]
) -> None:
    chosen: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(worker, "num_cores", lambda: 2)
    monkeypatch.setattr("torch.get_num_threads", lambda: default)
    monkeypatch.setattr("torch.set_num_threads", chosen.append)
    worker._prepare_libraries()
    assert chosen == expected
