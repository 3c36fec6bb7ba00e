"""docs/custom-module.md: its plain loop computes the same in 1 and in 3 processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.architecture import MODULES, is_promise
from tests.support.harness import PATIENCE_S, ROOT, environ
from tests.support.pages import write_files

pytestmark = [pytest.mark.processes, pytest.mark.full]
PAGE = ROOT / "docs" / "custom-module.md"
NAMED = (
    "import json, runpy, sys; runpy.run_path('loop.py'); "
    "json.dump(sorted(sys.modules), open('modules.json', 'w'))"
)


def run(folder: Path, *words: str) -> dict[str, torch.Tensor]:
    """Run `python ...` in a folder with the loop. Returns its weights."""
    folder.mkdir()
    write_files(PAGE, folder)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch 3: accuracy " in done.stdout
    return torch.load(folder / "net.pt", weights_only=True)


def test_loop_any_world_size(tmp_path: Path) -> None:
    alone = run(tmp_path / "1", "-c", NAMED)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3")
    for name, value in run(tmp_path / "3", *launcher, "loop.py").items():
        assert (value - alone[name]).abs().max() <= 1e-12, name
    imported = json.loads((tmp_path / "1" / "modules.json").read_text())
    own = {name.removeprefix("lockstep.") for name in imported if name.startswith("lockstep.")}
    # packages, which only have the names
    assert {name for name in own if not is_promise(name)} == {"data", "system"}
    assert own <= MODULES.keys()
    assert not any(
        name.partition(".")[0] in ("lightning", "hydra", "pydantic", "omegaconf")
        for name in imported
    )
