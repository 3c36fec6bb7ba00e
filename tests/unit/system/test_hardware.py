"""What a process finds around it: GPUs, and versions of what is installed and of what is not."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.system import hardware
from tests.support.harness import ROOT, environ

DESCRIBE = """
import json, pathlib
from lockstep.system import provenance
print(json.dumps(provenance.describe(pathlib.Path())))
"""


@pytest.mark.processes
def test_a_source_folder_that_nobody_installed_is_described_too(tmp_path: Path) -> None:
    """Every installed package but the metadata of two, and the sources of Lockstep by PYTHONPATH."""
    for folder in map(Path, sys.path):
        for entry in folder.iterdir() if folder.name == "site-packages" else ():
            is_hidden = entry.name.lower().startswith(("lockstep-", "__editable__", "tensorboard-"))
            link = tmp_path / entry.name
            if not is_hidden and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    path = f"{ROOT / 'src'}:{tmp_path}"
    words = [sys.executable, "-S", "-c", DESCRIBE]
    done = subprocess.run(words, env={**environ(), "PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    packages = json.loads(done.stdout)["packages"]
    assert packages["lockstep"] == lockstep.__version__
    assert packages["tensorboard"] is None
    assert packages["torch"]


# -- GPUs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "num_gpus"),
    [
        (None, 4),
        ("", 0),
        ("0", 1),
        ("0,1", 2),
        (" 3 , 1", 2),
        ("-1", 0),
        ("0,-1,1", 1),  # CUDA stops at the first entry that is none
        ("0,,1", 1),
        ("0,1,7,2", 2),
        ("0,1,0", 0),  # and refuses all when one comes twice
        ("2a,1b", 2),
        ("NoDevFiles", 0),
        ("0,GPU-1a", 1),
        ("GPU-1a,GPU-2b", 2),
        ("GPU-1a,0,GPU-2b", 1),
        ("GPU-1a,GPU-1a", 0),
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


@pytest.mark.parametrize("files", [["kfd"], ["dxg"], ["nvhost-gpu", "nvhost-ctrl-gpu"], ["nvgpu"], ["nvidia0", "MIG"]])
def test_torch_is_asked_where_device_files_do_not_tell(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """AMD, WSL, two kinds of Jetson, and a GPU that is split into several."""
    monkeypatch.setattr("os.listdir", lambda path: files)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a/1/0" if "MIG" in files else "0")
    assert hardware.num_visible_gpus() == 3
    monkeypatch.setattr("os.listdir", lambda path: ["null", "nvram"])
    assert hardware.num_visible_gpus() == 0
