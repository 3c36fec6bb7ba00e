"""`lockstep machine` shows the hardware here, with a command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.system import hardware
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, environ


def test_scratch_disks_are_writable_folders_each_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (closed := tmp_path / "closed").mkdir()
    for name, path in (("SLURM_TMPDIR", tmp_path), ("TMPDIR", tmp_path), ("SCRATCH", closed)):
        monkeypatch.setenv(name, str(path))
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: path != str(closed) and access(path, mode))
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
