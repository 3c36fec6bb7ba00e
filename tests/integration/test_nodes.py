"""`torchrun` runs on two nodes, which have separate networks and host names, and one disk."""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.runs.folder import EXIT_STOPPED, LIVE_STATES, RunFolder
from tests.support import nodes
from tests.support.commands import latest
from tests.support.exact import trained
from tests.support.harness import (
    PATIENCE_S,
    ROOT,
    SMALL,
    command,
    difference,
    environ,
    wait_until,
    write_run,
)

pytestmark = [pytest.mark.full, pytest.mark.processes]
LONGER = (*SMALL, "trainer.max_epochs=12")


@pytest.fixture(scope="module")
def two() -> Iterator[nodes.Nodes]:
    with nodes.started(environ()) as there:
        yield there


class Both:
    """A command that runs on both nodes."""

    def __init__(
        self, two: nodes.Nodes, cwd: Path, *words: str | Path, **variables: Mapping[str, str]
    ) -> None:
        self.logs = [cwd / f"{node}.log" for node in two.addresses]
        self.processes = [
            two.start(
                node, words, cwd=cwd, environ={**environ(), **variables.get(node, {})}, log=log
            )
            for node, log in zip(two.addresses, self.logs, strict=True)
        ]

    def text(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs)

    def codes(self) -> list[int]:
        try:
            return [process.wait(PATIENCE_S) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def wait_for_status(self, folder: RunFolder) -> None:
        """Wait for the begin of the training: from here on the workers heed signals."""

        def is_there() -> bool:
            assert all(process.poll() is None for process in self.processes), self.text()
            return bool(folder.read_status())

        wait_until(is_there, "training")


def test_stops_and_resumes_two_nodes(two: nodes.Nodes, tmp_path: Path, figure: Any) -> None:
    """SIGTERM to one node and the STOP file interrupt the script of the manifest.

    The rest runs in this process.
    """
    script, variables = pods(tmp_path)
    folder = RunFolder(tmp_path / "run")

    first = Both(two, tmp_path, *script, **variables)
    first.wait_for_status(folder)
    before = folder.read_status()
    first.processes[1].send_signal(signal.SIGTERM)
    assert first.codes() == [EXIT_STOPPED, EXIT_STOPPED], first.text()
    assert folder.read_status()["reason"] == "signal SIGTERM"
    second = Both(two, tmp_path, *script, **variables)
    wait_until(lambda: folder.read_status()["state"] in LIVE_STATES, "going on")
    folder.request_stop("enough")
    assert second.codes() == [EXIT_STOPPED, EXIT_STOPPED], second.text()
    assert folder.read_status()["reason"] == "stop flag: enough"
    assert folder.read_status()["step"] > before.get("step", 0)
    rest = command(
        f"resume={folder.path}",
        "trainer.num_nodes=1",
        "trainer.devices=1",
        "strategy.interface=null",
    )
    subprocess.run(rest, check=True, env=environ(), cwd=tmp_path)
    alone = trained(tmp_path / "alone", LONGER)
    largest = difference(alone, folder)
    figure(f"largest difference {largest:.1e}")
    assert largest <= 1e-12


@pytest.mark.parametrize(
    ("torchrun", "code"),
    [
        ("exit 1", 1),  # what it says was said by an earlier pod
        ("exit 0", 0),
        ("""echo '{"state": "stopped", "updated": 2}' > $RUN/status.json; exit 1""", EXIT_STOPPED),
        ("""echo '{"state": "failed", "updated": 2}' > $RUN/status.json; exit 1""", 1),
    ],
)
def test_exit_code_of_pod(tmp_path: Path, torchrun: str, code: int) -> None:
    script, variables = pods(tmp_path)
    folder = write_run(tmp_path / "run", SMALL)
    folder.write_status(state="stopped")
    (tmp_path / "torchrun").write_text(f"#!/bin/sh\n{torchrun}\n")
    assert (
        subprocess.run(
            script, cwd=tmp_path, env={**environ(), **variables["n1"]}, timeout=PATIENCE_S
        ).returncode
        == code
    )


def listening(two: nodes.Nodes, node: str, tmp_path: Path) -> set[str]:
    """Addresses of the listening TCP sockets of a node.

    "00000000", and as many zeros more, is every address.
    """
    log = tmp_path / f"{node}.sockets"
    command = ["cat", "/proc/net/tcp", "/proc/net/tcp6"]
    assert two.start(node, command, cwd=tmp_path, environ=environ(), log=log).wait(PATIENCE_S) == 0
    rows = [line.split() for line in log.read_text().splitlines()]
    codes = {row[1].partition(":")[0] for row in rows if row[3] == "0A"}
    return {
        socket.inet_ntoa(bytes.fromhex(code)[::-1]) if len(code) == 8 else code for code in codes
    }


def test_listening_address_one_machine(two: nodes.Nodes, tmp_path: Path) -> None:
    """Workers may have all their files open: gloo aborts when others use up the last one."""
    words = [
        "prlimit",
        "--nofile=1024:2048",
        *command(*SMALL, "trainer.devices=2", "trainer.max_epochs=500"),
    ]
    run = two.start("n1", words, cwd=tmp_path, environ=environ(), log=tmp_path / "n1.log")
    try:
        wait_until(lambda: latest(tmp_path).read_status().get("step", 0) >= 2, "second step")
        assert listening(two, "n1", tmp_path) == {"127.0.0.1"}
        pid = int(latest(tmp_path).heartbeat(0).read_text().split()[1])
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (2048, 2048)
    finally:
        run.send_signal(signal.SIGINT)
        assert run.wait(PATIENCE_S) == EXIT_STOPPED, (tmp_path / "n1.log").read_text()


def test_listening_address_two_nodes(two: nodes.Nodes, tmp_path: Path) -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    step |= {
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "n[1-2]",
    }
    place = {
        f"n{rank + 1}": {**step, "SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank)}
        for rank in range(2)
    }
    both = Both(
        two,
        tmp_path,
        *command(*SMALL, "trainer.devices=1", "trainer.num_nodes=2", "trainer.max_epochs=500"),
        **place,
    )
    wait_until(lambda: latest(tmp_path).read_status().get("step", 0) >= 2, "second step")
    assert listening(two, "n1", tmp_path) == {two.addresses["n1"]}
    latest(tmp_path).request_stop("enough")
    assert both.codes() == [EXIT_STOPPED, EXIT_STOPPED], both.text()


def pods(tmp_path: Path) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the command of the pods of docs/cluster.md, and the variables of each.

    Its commands are those of this Python.
    """
    _, job = yaml.safe_load_all(
        (ROOT / "docs/cluster.md").read_text().split("```yaml\n")[1].split("```")[0]
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    script = (
        container["args"][0]
        .replace("lockstep-0.lockstep", "n1")
        .replace("train.py", str(ROOT / "train.py"))
    )
    for name, module in {
        "lockstep": "lockstep.cli.main",
        "torchrun": "torch.distributed.run",
    }.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (tmp_path / name).chmod(0o755)
    given = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NODES": "2",
        "GPUS": "1",
        "RUN": str(tmp_path / "run"),
    }
    given["SETTINGS"] = " ".join([*LONGER, "strategy.interface=eth0"])
    return [*container["command"], script], {
        f"n{i + 1}": {**given, "JOB_COMPLETION_INDEX": str(i)} for i in range(2)
    }
