"""`lockstep machine` shows the hardware here and the partitions of a cluster, with a command for each."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import machine
from lockstep.cluster import scheduler
from lockstep.cluster.scheduler import Partition
from lockstep.system import hardware
from tests.support.gpus import PretendedGpus
from tests.support.harness import PATIENCE_S, environ

SINFO = """\
debug|up|30:00|1/0/1/2|16|64000|(null)
cpu*|up|infinite|2/6/0/8|64|256000|(null)
gpu|up|2-00:00:00|3/1/0/4|48|512000|gpu:a100:4(S:0-1),nvme:1
gpu|up|2-00:00:00|0/2/0/2|48|512000|gpu:h100:2,gpu:1g.10gb:7(S:1)
old|drain|1-00:00:00|0/4/0/4|8|32000|gpu:8
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    answers = {"sinfo": SINFO, "sacctmgr": "lab||normal,long|3||gres/gpu=2|\n"}
    monkeypatch.setattr(scheduler, "call", lambda tool, *_, **__: answers[tool])


def facts(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert machine.show_machine(is_json=True) == code
    return json.loads(capsys.readouterr().out)


def test_partitions_are_those_of_sinfo_one_for_each_kind_of_node(
    cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = facts(capsys)
    assert [Partition(**{**row, "gpu_kinds": tuple(row["gpu_kinds"])}) for row in found["partitions"]] == [
        Partition("debug", False, True, 2, 0, 0, (), 16, 64000, 1800.0),
        Partition("cpu", True, True, 8, 6, 0, (), 64, 256000, None),
        Partition("gpu", False, True, 4, 1, 4, ("a100",), 48, 512000, 172800.0),
        Partition("gpu", False, True, 2, 2, 9, ("h100", "1g.10gb"), 48, 512000, 172800.0),
        Partition("old", False, False, 4, 4, 8, (), 8, 32000, 86400.0),
    ]
    assert found["limits"] == ["Account=lab, QOS=normal,long, MaxJobs=3, MaxTRES=gres/gpu=2"]
    assert machine.show_machine(is_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["cpu", "(default)", "8", "6", "-", "64", "250.0", "GiB", "none"] in [line.split() for line in lines]
    assert "Your limits: Account=lab, QOS=normal,long, MaxJobs=3, MaxTRES=gres/gpu=2" in lines


def test_the_command_for_a_cluster_prefers_gpus_then_the_default_then_idle_nodes(
    cluster: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = "lockstep train cluster=slurm cluster.partition"
    assert facts(capsys)["commands"] == [
        "lockstep train",
        f"{given}=gpu cluster.time_min=60 trainer.num_nodes=2 trainer.devices=9",
    ]
    without = [line for line in SINFO.splitlines() if "gpu" not in line]
    for lines, line in (
        (without, f"{given}=cpu cluster.time_min=60 trainer.num_nodes=2 strategy=cpu cluster.cpus_per_worker=64"),
        (without[:1], f"{given}=debug cluster.time_min=30 trainer.num_nodes=2 strategy=cpu cluster.cpus_per_worker=16"),
        (["old|down|1:00:00|0/4/0/4|8|32000|gpu:8"], None),
    ):
        answers = {"sinfo": "\n".join(lines), "sacctmgr": ""}
        monkeypatch.setattr(scheduler, "call", lambda tool, *_, answers=answers, **__: answers[tool])
        assert facts(capsys)["commands"][1:] == ([line] if line else [])


def test_a_scheduler_that_does_not_answer_hides_nothing_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hardware, "num_visible_gpus", lambda: 0)
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho slurm_load_partitions: Unable to contact >&2\nexit 1\n")
    (tmp_path / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine.show_machine(is_json=True) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["cores"] == hardware.num_cores()
    assert printed.err == "lockstep: sinfo failed: slurm_load_partitions: Unable to contact\n"
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho fatal: Could not establish a configuration source >&2\nexit 1\n")
    assert facts(capsys)["partitions"] == []  # the tools of SLURM are installed, and there is no cluster


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
    assert found["commands"][0] == "lockstep train trainer.devices=2"
    assert "1    Pretended GPU  2.0 GiB  2.0 GiB  9.0, bfloat16  0 2" in shown(count=3).splitlines()
