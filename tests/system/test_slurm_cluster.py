"""The SLURM that other tests run on is a real one: two nodes, preemption, and nothing left of it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import ROOT, wait_until
from tests.support.slurm import Slurm


def test_two_nodes_are_idle(slurm: Slurm, figure: Any) -> None:
    figure(f"up in {slurm.seconds_to_start:.1f} s")
    assert [slurm.node_state(node) for node in ("n1", "n2")] == ["idle", "idle"]


def test_a_step_runs_on_both_nodes(slurm: Slurm) -> None:
    names = slurm.run("srun", "--nodes=2", "printenv", "SLURMD_NODENAME").stdout.split()
    assert sorted(names) == ["n1", "n2"]
    if slurm.has_networks:
        assert sorted(slurm.run("srun", "--nodes=2", "hostname").stdout.split()) == ["n1", "n2"]


def test_there_is_no_accounting(slurm: Slurm) -> None:
    assert slurm.run("sacct", code=None).returncode != 0


def test_a_job_sees_the_gpus_it_was_given(slurm: Slurm) -> None:
    assert slurm.run("srun", "--gres=gpu:2", "printenv", "CUDA_VISIBLE_DEVICES").stdout.strip() == "0,1"


def test_a_preempted_job_is_requeued_and_finishes(slurm: Slurm) -> None:
    # the second time it need not be waited for
    script = 'echo started; [ -n "$SLURM_RESTART_COUNT" ] || exec sleep 3600'
    low = slurm.sbatch(script, "--nodes=2", "--exclusive")
    slurm.wait(low, "RUNNING")
    high = slurm.sbatch("true", "--partition=high", "--nodes=2", "--exclusive")
    assert slurm.wait(high) == "COMPLETED"
    assert slurm.wait(low) == "COMPLETED"
    assert slurm.show(low)["Restarts"] == "1"


def test_the_localhost_of_a_node_is_its_own(slurm: Slurm) -> None:
    if not slurm.has_networks:
        pytest.skip("both nodes are this machine")
    port = 29500
    listen = f"""
import socket
with socket.create_server(("127.0.0.1", {port})) as server:
    print("listens", flush=True)
    server.accept()
"""
    connect = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=600)"
    server = slurm.sbatch(f"{sys.executable} -c '{listen}'", "--nodelist=n1", "--output=server.txt")
    wait_until(lambda: "listens" in _text(slurm.folder / "server.txt"))
    there = slurm.run("srun", "--nodelist=n2", sys.executable, "-c", connect, code=None)
    assert "Connection refused" in there.stderr
    slurm.run("srun", "--nodelist=n1", sys.executable, "-c", connect)
    assert slurm.wait(server) == "COMPLETED"


def test_a_node_without_power_goes_down_and_comes_back(slurm: Slurm) -> None:
    job = slurm.sbatch("exec sleep 3600", "--nodelist=n1", "--no-requeue")
    slurm.wait(job, "RUNNING")
    slurm.kill("n1")
    if slurm.has_networks:
        wait_until(lambda: slurm.node_state("n1").startswith("down"), what="n1 is down")
        assert slurm.wait(job) == "NODE_FAIL"
    slurm.start("n1")
    wait_until(lambda: slurm.node_state("n1") in ("idle", "mixed"), what="n1 is back")
    slurm.run("scancel", job)
    assert slurm.run("srun", "--nodelist=n1", "echo", "here").stdout == "here\n"


OWNER = """
import sys, time
from tests.support import slurm
with slurm.started() as cluster:
    print(cluster.folder, cluster.run("srun", "--nodes=2", "printenv", "SLURMD_NODENAME").stdout.split(), flush=True)
    time.sleep(3600)
"""


def test_two_clusters_do_not_meet_and_a_killed_owner_leaves_none(slurm: Slurm) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            folder = Path(owner.stdout.readline().split()[0])
            pid = int((folder / "run" / "slurmctld.pid").read_text())
            assert _is_running(pid)
        finally:
            owner.kill()
    conf, other_conf = ((path / "slurm.conf").read_text() for path in (slurm.folder, folder))
    assert _value(conf, "SlurmctldPort") != _value(other_conf, "SlurmctldPort")
    wait_until(lambda: not _is_running(pid), what="slurmctld has ended")
    wait_until(lambda: not (folder / "nodes" / "number").exists(), what="the nodes are gone")
    shutil.rmtree(folder)
    assert [slurm.node_state(node) for node in ("n1", "n2")] == ["idle", "idle"]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _value(conf: str, key: str) -> str:
    return next(line.partition("=")[2] for line in conf.splitlines() if line.startswith(f"{key}="))


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
