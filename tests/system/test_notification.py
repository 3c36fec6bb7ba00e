"""The notification of the end of a run: its content, its failures, and that the run is not affected."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from lockstep.config import overrides
from lockstep.config.checks import validation
from lockstep.config.composing.compose import compose_config
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.launch import notification, parent, runner, worker
from lockstep.runs import naming
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_STOPPED, RunFolder
from lockstep.system.launcher import World
from tests.support.commands import Command
from tests.support.commands import run as run_command
from tests.support.harness import PATIENCE_S, SMALL, command, wait_until

TELL = "#!/bin/sh\ncat > told.json\nenv | grep ^LOCKSTEP_ | grep -v ^LOCKSTEP_TEST_ | sort > told.txt\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tell").write_text(TELL)
    (tmp_path / "tell").chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "my run").mkdir()
    made = RunFolder(tmp_path / "my run")
    made.write_status(
        state="failed", reason="Zero\x00Division\nError", name="x", epoch=3, step=40, best=0.5, monitor="val/accuracy",
        metrics={"val/loss": 0.25, "val/accuracy": float("nan")},
    )  # fmt: skip
    return made


def config_of(**notify: Any) -> Config:
    config = validation.check_config(compose_config([]))
    return config.model_copy(update={"notify": config.notify.model_copy(update={"timeout_s": PATIENCE_S, **notify})})


# -- content ----------------------------------------------------------------------------------------------------------


def test_the_command_gets_json_and_variables(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    notification.send(config_of(command="./tell"), folder, EXIT_FAILED)
    told = json.loads(Path("told.json").read_text())
    assert time.time() - time.mktime(time.strptime(told["ended"][:19], "%Y-%m-%dT%H:%M:%S")) < PATIENCE_S
    assert len(told.pop("ended")) == len("2026-11-21T17:00:00+00:00")
    assert told == {
        "run": str(folder.path),
        "name": "digits_resnet18",
        "state": "failed",
        "reason": "Zero\x00Division\nError",
        "exit_code": 1,
        "host": socket.gethostname(),
        "epoch": 3,
        "step": 40,
        "best": 0.5,
        "monitor": "val/accuracy",
        "metrics": {"val/loss": 0.25},
        "metrics_epoch": None,
    }
    assert Path("told.txt").read_text().splitlines() == [
        "LOCKSTEP_REASON=Zero Division Error",
        f"LOCKSTEP_RUN={folder.path}",
        "LOCKSTEP_STATE=failed",
    ]
    assert capfd.readouterr() == ("", "")
    folder.write_summary({"test_accuracy": 0.75})
    found = {code: notification.describe(config_of(), folder, code) for code in (0, EXIT_STOPPED)}
    assert [one["state"] for one in found.values()] == ["finished", "stopped"]
    assert [one.get("summary") for one in found.values()] == [{"test_accuracy": 0.75}, None]


def test_the_command_runs_without_a_shell(folder: RunFolder) -> None:
    Path("tell").write_text('#!/bin/sh\nprintf "%s\\n" "$@" > words\n')
    notification.send(config_of(command="./tell 'two words' $HOME ; rm *"), folder, 0)
    assert Path("words").read_text().splitlines() == ["two words", "$HOME", ";", "rm", "*"]


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "script", "reason"),
    [
        ("./missing x", "", "No such file or directory"),
        ("./tell", "#!/bin/sh\nexit 3\n", "exit code 3"),
        ("./tell", "#!/bin/sh\nexec sleep 3600\n", "timeout, notify.timeout_s"),
    ],
)
def test_a_failing_command_is_one_line_within_its_time(
    folder: RunFolder, capfd: pytest.CaptureFixture[str], typed: str, script: str, reason: str
) -> None:
    Path("tell").write_text(script)
    notification.send(config_of(command=typed, timeout_s=0.5 if "timeout" in reason else PATIENCE_S), folder, 0)
    assert capfd.readouterr() == ("", f"lockstep: notify.command failed ({reason}); the run is not affected.\n")


def test_sigterm_waits_and_a_second_ctrl_c_ends_it(folder: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    Path("tell").write_text(
        f"#!/bin/sh\nkill -TERM {os.getpid()}; kill -USR1 {os.getpid()}; sleep 0.3; touch through\n"
    )
    notification.send(config_of(command="./tell"), folder, 0)
    assert Path("through").exists()
    assert capfd.readouterr().err == ""
    interrupt = f"kill -INT {os.getpid()}; sleep 0.2"
    Path("tell").write_text(f"#!/bin/sh\n{interrupt}; touch once; {interrupt}\n")
    notification.send(config_of(command="./tell", timeout_s=PATIENCE_S), folder, 0)
    assert Path("once").exists()
    assert "lockstep: notify.command failed (KeyboardInterrupt)" in capfd.readouterr().err
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)] == before


# -- the setting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("notify.command=''", "notify.command=*** must be a command line or null"),
        ("notify.command='\"tell me'", "is not a valid command line: No closing quotation"),
        ("notify.timeout_s=0.0", "notify.timeout_s=0.0 must be 0 < float <= 600"),
    ],
)
def test_a_wrong_setting_is_rejected_before_anything_starts(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        overrides.check([text], is_multirun=False)
    (found,) = str(caught.value).splitlines()
    assert error in found


def test_the_notification_is_not_part_of_the_training() -> None:
    saved = validation.check_config(compose_config(["seed=3", "notify.command=tell", "notify.timeout_s=3.0"]))
    (config,) = overrides.check(["resume=x", "notify.command=tell me"], saved=saved).configs
    assert (config.notify.command, config.notify.timeout_s) == ("tell me", 3.0)
    assert config_file.fingerprint(config) == config_file.fingerprint(saved)
    assert overrides.check(["resume=x"], saved=saved).configs[0].notify == saved.notify


# -- the run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "rank", "is_sent"),
    [(0, None, True), (EXIT_CONFIG, None, True), (130, None, False), (EXIT_FAILED, 0, True), (0, 1, False)],
)
def test_one_process_notifies_once_after_the_run_is_unlocked(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, code: int, rank: int | None, is_sent: bool
) -> None:
    told: list[int] = []

    def send(config: Config, of: RunFolder, code: int) -> None:
        assert not of.is_locked()  # so that the command can resume it
        told.append(code)

    world = None if rank is None else World("torchrun", rank, rank, 0, 2)
    monkeypatch.setattr(notification, "send", send)
    monkeypatch.setattr(worker, "run_here", lambda job, place, flag: code)
    monkeypatch.setattr(worker, "import_training", lambda: None)
    monkeypatch.setattr(parent, "run_workers", lambda job, count, flag, is_parallel: code)
    monkeypatch.setattr(runner, "outer_world", lambda environ: world)
    group = SimpleNamespace(meet=lambda *args: None, shared_folder=lambda make, config, place, known: make())
    monkeypatch.setitem(sys.modules, "lockstep.assembly.process_group", group)  # which imports torch
    config = validation.check_config(
        compose_config(["trainer.devices=2", "strategy=ddp", "silent=true", "notify.command=unused"])
    )

    def make(held: Any) -> RunFolder:
        held.enter_context(runner.lock_run(folder))
        return folder

    assert runner.run_workers(make, config) == (folder, code)
    assert told == ([code] if is_sent else [])


@pytest.mark.full
@pytest.mark.processes
def test_a_killed_worker_and_the_end_of_the_resumed_run_are_reported(tmp_path: Path) -> None:
    small = [override for override in SMALL if override != "callbacks.curves=null"]
    long = [*small, "callbacks.curves.graph=false", "silent=true", "trainer.max_epochs=500"]
    with open("log", "wb") as log:
        first = Command(command(*long, "strategy=ddp", "notify.command=./tell s3cret"), stdout=log, stderr=log)
    latest = RunFolder(tmp_path / "outputs" / "latest")
    try:
        wait_until(lambda: latest.read_status().get("step", 0) >= 2 or first.poll() is not None, "second step")
        assert first.poll() is None, Path("log").read_text()
        os.kill(int(latest.heartbeat(0).read_text().split()[1]), signal.SIGKILL)
        assert first.wait(PATIENCE_S) == EXIT_FAILED
    finally:
        first.kill()
        first.wait()
    told = json.loads(Path("told.json").read_text())
    assert (told["state"], told["exit_code"]) == ("failed", 1)
    assert told["reason"].startswith("rank 0 of 1 was ended by SIGKILL")
    assert "LOCKSTEP_STATE=failed" in Path("told.txt").read_text()
    files = [path for path in latest.path.rglob("*") if path.is_file()]
    assert len(list(latest.path.glob("events.out*"))) == 1
    assert [path.name for path in files if b"s3cret" in path.read_bytes()] == ["config.yaml"]
    Path("told.json").unlink()
    epochs = told["epoch"]
    Path("tell").write_text(f"{TELL}exit 3\n")
    again = ["resume=outputs/latest", "--trust", "strategy=cpu", f"trainer.max_epochs={epochs}"]
    done = run_command(command(*again, "notify.command=./tell again"))
    assert done.returncode == 0, done.stderr
    assert "lockstep: notify.command failed (exit code 3)" in done.stderr
    assert yaml.safe_load(latest.config.read_text())["notify"]["command"] == "./tell again"
    end = json.loads(Path("told.json").read_text())
    assert (end["state"], end["exit_code"], end["epoch"]) == ("finished", 0, epochs)
    assert end["summary"]["test_accuracy"] == latest.read_summary()["test_accuracy"]
    assert end["run"] == str(latest.path.resolve())
    assert naming.find("latest").read_status()["state"] == "finished"
