"""What there is: versions, GPUs as torch and as Lockstep count them, and what is missing. Runs where torch alone is."""

import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch
from torch.cuda import nccl

from benchmarks.gpu.runner import ROOT
from benchmarks.gpu.stage import Bench, leave_without_gpu
from lockstep.system import hardware, provenance

UNUSED = ("scikit-learn", "optuna", "cmaes", "submitit")  # of digits, searches and SLURM: no stage needs them


def facts(bench: Bench) -> None:
    """Tell all facts; where there is no GPU, none of the other stages has anything to do."""
    bench.tell("Python", platform.python_version())
    bench.tell("torch", f"{torch.__version__}, built for CUDA {torch.version.cuda}")
    bench.attempt("cuDNN", lambda bench: bench.tell("cuDNN", str(torch.backends.cudnn.version())))
    bench.tell("CPU", f"{provenance.cpu_name()}, {hardware.num_cores()} cores, {_memory_gib():.0f} GiB")
    bench.tell("shared memory", f"{shutil.disk_usage('/dev/shm').total / 2**30:.1f} GiB in /dev/shm")
    for name, path in _data(bench.data):
        bench.tell(name, path)
    missing = missing_packages()
    needed = [text for name, text in missing.items() if name not in UNUSED]
    bench.check("packages that the stages need", not needed, ", ".join(needed) or "all are there")
    others = [text for name, text in missing.items() if name in UNUSED]
    bench.tell("packages that no stage needs", ", ".join(others) or "all are there")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    has_header = Path(sysconfig.get_path("include"), "Python.h").exists()
    bench.check(
        "torch.compile has what Triton needs", bool(compiler) and has_header, f"{compiler}, Python.h: {has_header}"
    )
    bench.attempt("GPUs", _gpus)
    leave_without_gpu()


def _gpus(bench: Bench) -> None:
    count, ours = torch.cuda.device_count(), hardware.num_visible_gpus()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
    bench.check(
        "torch and Lockstep count the same GPUs",
        count == ours,
        f"torch {count}, Lockstep {ours}, CUDA_VISIBLE_DEVICES {visible}",
    )
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        memory = f"{properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} multiprocessors"
        bench.tell(f"GPU {number}", f"{properties.name}, capability {properties.major}.{properties.minor}, {memory}")
    bench.tell("driver", _driver())
    if count:
        bench.tell("NCCL", ".".join(map(str, nccl.version())))
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    bench.tell("TF32 as torch sets it", f"convolutions {convolutions}, matrix products {products}")


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown: no nvidia-smi"
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    return ", ".join(sorted(set((done.stdout or done.stderr).split("\n")))).strip(", ")


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _data(folder: Path) -> Iterator[tuple[str, str]]:
    for name, pattern in (("Fashion-MNIST", "FashionMNIST/raw/*"), ("CIFAR-10", "cifar10-images.tar*")):
        paths = sorted(folder.glob(pattern))
        size = sum(path.stat().st_size for path in paths) / 2**20
        yield name, f"{len(paths)} files, {size:.0f} MiB" if paths else f"none: no {folder / pattern}"


def missing_packages() -> dict[str, str]:
    """Describe packages of pyproject.toml that are absent or too old, with the pin to install."""
    missing = {}
    pins = dict(line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split())
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in [*requirements, "pytest"]:
        match = re.match(r"([\w-]+)(?:.*>=([\d.]+))?", requirement)
        assert match is not None
        name, least = match.groups()
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            missing[name] = f"{name}=={pins[name]} is missing"
            continue
        if least and _number(installed) < _number(least):
            missing[name] = f"{name} {installed} is older than {least}: {name}=={pins[name]}"
    return missing


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
