"""What a run was made with: machine, packages, commit."""

import contextlib
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import lockstep
from lockstep.system.redaction import redacted

FROZEN_COMMIT = "COMMIT"  # beside the code of a job
PACKAGES = ("torch", "torchvision", "lightning", "hydra-core", "torchmetrics", "tensorboard")


def describe(project: Path) -> dict[str, Any]:
    """Versions, devices, host and commit of a project, as plain values for environment.json. Imports torch."""
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
        "commit": commit(project),
        "command": redacted(sys.argv),
    }


def version_of(package: str) -> str | None:
    """The version that pip installed; None for a package that is used from its source folder or is missing."""
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """What the CPU calls itself."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else platform.processor()


def commit(root: Path) -> str | None:
    """Commit of the tree at `root`, marked "+changes" when files differ from it; None outside git."""
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
