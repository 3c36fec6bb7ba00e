"""Describes the machine, packages and commit of a run."""

import contextlib
import os
import platform
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lockstep
from lockstep.system import processes
from lockstep.system.redaction import redact

FROZEN_COMMIT = "COMMIT"  # File in the copy of the code that a job runs
PACKAGES = (
    "torch",
    "torchvision",
    "lightning",
    "hydra-core",
    "torchmetrics",
    "tensorboard",
    "pillow",
    "simplejpeg",
)


def describe() -> dict[str, Any]:
    """Collect versions, devices, host and commit of the project, as plain values for run.json.

    This imports torch.
    """
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": {
            **{package: version(package) for package in PACKAGES},
            "lockstep": lockstep.__version__,
        },
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cpu_cores": os.cpu_count(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "commit": commit(project_root()),
        "command": redact(sys.argv),
    }


def cpu_name() -> str:
    with contextlib.suppress(OSError):
        cpu_info = Path("/proc/cpuinfo").read_text()
        if match := re.search(r"^model name\s*:\s*(.+)$", cpu_info, re.MULTILINE):
            return match[1]
    return platform.processor()


def commit(root: Path) -> str | None:
    """Return the commit of the tree at `root`, or None outside git.

    The commit has the suffix "+changes" if tracked files differ from it.
    """
    # The file exists only in the copy of a job.
    with contextlib.suppress(FileNotFoundError):
        return (root / FROZEN_COMMIT).read_text().strip() or None
    try:
        return subprocess.run(
            [
                "git",
                "-C",
                root,
                "describe",
                "--always",
                "--exclude=*",
                "--abbrev=64",
                "--dirty=+changes",
            ],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def project_root() -> Path:
    """Return the folder of the project, after `enter` or `use` of config/saved/project.py."""
    if not processes.is_safe_path:
        return Path(sys.path[0])
    script = Path(sys.argv[0])
    return script.resolve().parent if script.suffix == ".py" else Path.cwd()
