"""Pretended GPUs: variables that make Python processes find them.

`python -m tests.support.gpus 2 python train.py ...` runs a command on a machine with two of them.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "pretended_gpu"
FIRST_TORCH = "2.15"  # that it was tried with
SOURCES = ("kernels.cpp", "asking.h", "devices.h", "graphs.h", "streams.h", "tensors.h", "waits.h")
MEMORY_MIB = 1024  # of the host: little, for an absurd batch to be refused before it fills the host


def reason_without() -> str | None:
    """Why this machine cannot pretend GPUs; None if it can."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is a build without CUDA, which has no kernels to replace"
    if torch.__version__ < FIRST_TORCH:
        return (
            f"the pretended GPU replaces private parts of torch {FIRST_TORCH}, "
            f"and this is torch {torch.__version__}"
        )
    if shutil.which("g++") is None:
        return "there is no g++ to build the pretended GPU with"
    return None


def build(cache: Path) -> Path:
    """Build the library of the pretended GPU in `cache`.

    It is built once for each version of torch and of the source. Other processes wait for the one
    that builds it.
    """
    digest = hashlib.blake2b(torch.__version__.encode(), digest_size=8)
    for name in SOURCES:
        digest.update((FOLDER / name).read_bytes())
    library = cache / f"{digest.hexdigest()}.so"
    with open(cache / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    return library


def _compile(library: Path) -> None:
    torch_folder = Path(torch.__file__).parent
    written = library.with_suffix(".part")
    subprocess.run(
        [
            *(
                "g++",
                "-std=c++20",
                "-O0",
                "-fPIC",
                "-shared",
                str(FOLDER / "kernels.cpp"),
                "-o",
                str(written),
            ),
            *(f"-I{torch_folder}/include", f"-I{torch_folder}/include/torch/csrc/api/include"),
            *(
                f"-L{torch_folder}/lib",
                "-ltorch",
                "-ltorch_cpu",
                "-lc10",
                f"-Wl,-rpath,{torch_folder}/lib",
            ),
        ],
        check=True,
    )
    written.rename(library)


class PretendedGpus:
    """Environments of processes with GPUs."""

    def __init__(self, library: Path) -> None:
        self._library = library

    def environ(
        self, count: int, *, memory_mib: int = MEMORY_MIB, is_asking: bool = False, path: str = ""
    ) -> Mapping[str, str]:
        """Variables for `count` GPUs with `memory_mib` in total; `path` is added to PYTHONPATH.

        With `is_asking` each kind of call is also tried with CUDA's own kernel.
        """
        variables = {
            "LOCKSTEP_PRETENDED_LIBRARY": str(self._library),
            "LOCKSTEP_PRETENDED_GPUS": str(count),
            "LOCKSTEP_PRETENDED_MEMORY_MIB": str(memory_mib),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(FOLDER), path))),
        }
        return variables | ({"LOCKSTEP_PRETENDED_ASKS": "1"} if is_asking else {})


def main() -> int:
    """Run a command with as many GPUs as the first argument. Returns its exit code."""
    count, *command = sys.argv[1:]
    reason = reason_without()
    if reason is not None:
        raise SystemExit(reason)
    cache = Path(".pytest_cache/d/pretended_gpu")
    cache.mkdir(parents=True, exist_ok=True)
    gpus = PretendedGpus(build(cache.resolve()))
    variables = gpus.environ(int(count), path=os.environ.get("PYTHONPATH", ""))
    return subprocess.run(command, env={**os.environ, **variables}).returncode


if __name__ == "__main__":
    sys.exit(main())
