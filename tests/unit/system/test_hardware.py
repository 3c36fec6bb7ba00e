"""GPUs, cores and memory of a machine or container."""

import itertools
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lockstep.launch import worker
from lockstep.sweeps import command
from lockstep.system import hardware
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, environ

# -- GPUs --------------------------------------------------------------------------------------------------------------


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
def test_visible_gpus_are_counted_as_cuda_counts_them(
    variable: str | None, num_gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.listdir", lambda path: ["null", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert hardware.num_visible_gpus() == num_gpus
    # what torch makes of the variable before it asks the driver
    entries = torch.cuda._parse_visible_devices()
    real = itertools.takewhile(lambda entry: isinstance(entry, str) or entry < 4, entries)
    assert len(list(real)) == num_gpus


@pytest.mark.parametrize("files", [["kfd"], ["dxg"], ["nvgpu"], ["nvidia0", "MIG"], ["null", "nvram"]])
def test_torch_counts_where_device_files_do_not(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD, WSL, Jetson, and a partitioned GPU."""
    monkeypatch.setattr("os.listdir", lambda path: files)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a/1/0" if "MIG" in files else "0")
    assert hardware.num_visible_gpus() == (0 if "nvram" in files else 3)


# -- limits of containers ----------------------------------------------------------------------------------------------

NONE_V1 = str(2**63 - 4096)  # what version 1 has in place of "max"


def machine(path: Path, groups: str, files: dict[str, str]) -> Path:
    """Fake a system whose process is in `groups`, with 64 GiB of which 32 are free, and files below /sys/fs/cgroup."""
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
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),  # that of a group above
        ("0::/../host/b\n", {"cpu.max": "200000 100000\n"}, 2),  # outside of the namespace that is seen
        ("4:cpu,cpuacct:/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 2),
        # the path on the host, which a container does not see: its own group is the root of the mount
        ("4:cpu:/docker/3f\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "10000"}, 5),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_a_quota_of_a_container_counts_in_place_of_the_cores_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(hardware, "ROOT", machine(tmp_path, groups, files))
    monkeypatch.setattr(hardware, "cores", lambda: list(range(64)))
    assert hardware.num_cores() == count


@pytest.mark.parametrize(("variable", "default", "expected"), [(None, 64, [2]), (None, 2, []), ("8", 8, [])])
def test_torch_has_no_more_threads_than_a_quota_allows_unless_a_variable_is_set(
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


def test_trials_share_as_many_cores_as_a_quota_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "cores", lambda: list(range(64)))
    monkeypatch.setattr(hardware, "num_cores", lambda: 3)
    cores = command.machine_here().cores
    assert list(cores) == sorted({*cores})
    assert len(cores) == 3


def memory(folder: str, limit: int | str, used: int, cached: int) -> dict[str, str]:
    """Files of version 2 in GiB; `cached` of what is used are files, half of them read often."""
    stat = f"anon 5\ninactive_file {cached * 2**29}\nactive_file {cached * 2**29}\n"
    limit = limit if isinstance(limit, str) else str(limit * 2**30)
    return {f"{folder}memory.max": limit, f"{folder}memory.current": str(used * 2**30), f"{folder}memory.stat": stat}


def old_memory(folder: str, limit: str, used: int, cached: int) -> dict[str, str]:
    """Those of version 1, in which a plain name counts without the groups below."""
    stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {cached * 2**30}\ntotal_active_file 0\n"
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
        ("4:memory:/\n", old_memory("", NONE_V1, 7, 0), 64, 32),
    ],
)
def test_a_memory_limit_of_a_container_counts_in_place_of_the_memory_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, files: dict[str, str], total: int, available: int
) -> None:
    monkeypatch.setattr(hardware, "ROOT", machine(tmp_path, groups, files))
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * 2**18}.__getitem__)
    assert hardware.memory_bytes() == total * 2**30
    assert hardware.available_bytes() == available * 2**30


def test_without_linux_there_are_no_limits_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "ROOT", tmp_path)
    assert hardware.num_cores() == len(hardware.cores())
    assert hardware.memory_bytes() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert hardware.available_bytes() is None


IN_TURNS = """
import resource
from lockstep.assembly.precision import chosen_device
from lockstep.config.schema.configuration import Config
chosen_device(Config.model_construct(), (), None)
size = 24 << 20  # four of them are more than glibc keeps by itself
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [b"1" * size for _ in range(4)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(sum(faults[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_a_process_that_computes_on_a_cpu_uses_freed_memory_again() -> None:
    done = subprocess.run([sys.executable, "-c", IN_TURNS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000  # page faults; new memory has 24,576 each time, or 48 with huge pages


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("", [(-3, 32 << 20), (-1, 2**31 - 1)]), ("MALLOC_TRIM_THRESHOLD_", []), ("GLIBC_TUNABLES", [])],
)
def test_an_allocator_that_the_user_configured_stays_so(
    variable: str, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[int, int]] = []
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    if variable:
        monkeypatch.setenv(variable, "glibc.malloc.check=0")
    monkeypatch.setattr(hardware.ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *one: called.append(one)))
    hardware.keep_freed_memory()
    assert called == expected


# -- lockstep machine --------------------------------------------------------------------------------------------------


def test_scratch_disks_are_writable_folders_each_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, path in (("SLURM_TMPDIR", tmp_path), ("TMPDIR", tmp_path), ("SCRATCH", "/sys")):
        monkeypatch.setenv(name, str(path))
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: path != "/sys" and access(path, mode))
    found = hardware.scratch_disks()
    assert next(iter(found)) == "$SLURM_TMPDIR"
    assert not {"$TMPDIR", "$SCRATCH"} & found.keys()
    assert found["$SLURM_TMPDIR"]["path"] == str(tmp_path)
    assert found["/tmp"]["free_bytes"] > 0


@pytest.mark.full
@pytest.mark.processes
def test_gpus_are_those_that_torch_sees(gpus: PretendedGpus, tmp_path: Path) -> None:
    def shown(*words: str, count: int) -> str:
        variables = {**environ(), **gpus.environ(3, memory_mib=2048), "CUDA_VISIBLE_DEVICES": "0,1,2"[: 2 * count - 1]}
        line = [sys.executable, "-m", "lockstep.cli.main", "machine", *words]
        done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = json.loads(shown("--json", count=2))
    gpu = {"name": "Pretended GPU", "memory_bytes": 2048 << 20, "free_bytes": 2048 << 20}
    gpu |= {"compute_capability": "9.0", "bfloat16": True}
    assert found["gpus"] == [gpu | {"linked_to": [1]}, gpu | {"linked_to": [0]}]
    assert found["command"] == "lockstep train trainer.devices=2"
    assert "1    Pretended GPU  2.0 GiB  2.0 GiB  9.0, bfloat16  0 2" in shown(count=3).splitlines()
