"""`lockstep status`, `runs` and `compare`: their output."""

import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.monitoring import cells
from lockstep.runs.folder import LIVE_STATES, RunFolder
from lockstep.system import wording
from lockstep.system.terminal import duration
from tests.support.screens import seen

HOST = socket.gethostname()
NOW = 1.7e9  # 2023-11-14
TRAINED: dict[str, Any] = {
    "state": "finished", "reason": "", "name": "digits_resnet18", "workers": 2, "device": "CPU, 1 thread each",
    "precision": "bfloat16", "host": HOST, "pid": 4242, "epoch": 4, "max_epochs": 10, "step": 312, "total_steps": 780,
    "percent": 40.0, "learning_rate": 0.0734, "epoch_s": 18.25, "elapsed_s": 72.4, "remaining_s": 109.6,
    "images_per_s": 1234.5, "best": 0.98125, "monitor": "val/accuracy",
    "metrics": {"train/loss": 0.5, "val/accuracy": 0.98},
}  # fmt: skip


def run(path: Path, *overrides: str, config: str = "seed: 0\n", started: float = NOW, **status: Any) -> RunFolder:
    """A run folder as a training leaves it, with these facts changed; no status where its state is None."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.config.write_text(config)
    folder.facts_file.write_text(json.dumps({"overrides": overrides, "inode": path.stat().st_ino}))
    folder.lock_file.touch()
    if status.get("state", "") is not None:
        status = TRAINED | {"started": started, "updated": time.time()} | status
        (path / "status.json").write_text(json.dumps(status))  # not synced to the disk, which takes time
    os.utime(folder.config, (started, started))
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")


class Said:
    """What a command wrote, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[list[str]]:
        """Cells of the lines of a table in a pipe, without the heads."""
        return [re.split("  +", line) for line in self.out.splitlines()[1:]]


@pytest.fixture
def lockstep(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command in this process, its output in a pipe."""

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["lockstep", *words])
        try:
            code = main._command()
        except SystemExit as left:  # of argparse
            code = int(left.code or 0)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


def rows_of(text: str) -> dict[str, str]:
    """Name and value of the rows of a status."""
    return dict(re.split(r"  +", line, maxsplit=1) for line in text.splitlines() if "  " in line)


def test_the_status_of_the_latest_run_is_complete(tmp_path: Path, lockstep: Any) -> None:
    folder = run(tmp_path / "outputs" / "day" / "it", state="training", host="node07")
    (tmp_path / "outputs" / "latest").symlink_to("day/it")
    said = lockstep("status")
    assert said.code == 0
    rows = rows_of(said.out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, \d\.\d s ago", rows.pop("updated"))
    assert re.fullmatch(r"1:1\d so far, about 1:50 left", rows.pop("time"))
    assert rows == {
        "state": "training",
        "progress": "40.0 %",
        "epoch": "4 of 10, step 312 of 780",
        "speed": "1,234 images/s, 18.2 s an epoch",
        "learning rate": "0.0734",
        "best": "val/accuracy 0.9812",
        "train/loss": "0.5000",
        "val/accuracy": "0.9800",
        "workers": "2 x CPU, 1 thread each",
        "precision": "bfloat16",
        "process": "pid 4242 on node07",
        "started": cells.moment(NOW),
        "run folder": "outputs/day/it",
        "stop": "lockstep stop outputs/day/it",
    }
    assert said.out.startswith("digits_resnet18\n")
    assert json.loads(lockstep("status", "--json").out)["path"] == str(folder.path)


@pytest.mark.full
def test_a_terminal_shows_colors(tmp_path: Path) -> None:
    run(tmp_path / "it", state="training", host="node07")
    lines, text = seen(100, "status", "it")
    assert "progress       40.0 %" in lines
    assert "\x1b[36m" in text  # cyan: live


def test_the_next_command_fits_the_state(tmp_path: Path, lockstep: Any) -> None:
    resume = """lockstep train 'resume="my run"'"""
    expected = dict.fromkeys(LIVE_STATES, "stop +lockstep stop 'my run'")
    expected |= {"stopping": f"then resume +{resume}", "finished": "evaluate +lockstep eval 'my run'"}
    expected |= dict.fromkeys(("stopped", "failed", "pruned", "no signal"), f"try again +{resume}")
    folder = run(tmp_path / "my run")
    for state, command in expected.items():
        folder.write_status(**TRAINED | {"state": state, "host": "another machine"})
        assert re.fullmatch(command, lockstep("status", "my run").out.splitlines()[-2])
    folder.checkpoints.mkdir()
    folder.last_checkpoint.touch()
    folder.write_status(**TRAINED | {"state": "stopped"})
    assert re.fullmatch(f"resume +{resume}", lockstep("status", "my run").out.splitlines()[-2])


def test_a_run_without_a_status_or_with_a_broken_one_is_shown(tmp_path: Path, lockstep: Any) -> None:
    folder = run(tmp_path / "it", state=None)
    rows = rows_of(lockstep("status", "it").out)
    assert rows == {"state": "not started", "run folder": "it", "start": "lockstep train resume=it"}
    (folder.path / "status.json").write_text("{")
    rows = rows_of(lockstep("status", "it").out)
    assert (rows["state"], rows["look"]) == ("broken", "cat it/status.json")


def test_the_time_of_a_live_run_includes_that_since_its_last_status(tmp_path: Path, lockstep: Any) -> None:
    run(tmp_path / "live", state="training", host="node07", updated=time.time() - 60, epoch_remaining_s=400.0)
    run(tmp_path / "ended", updated=time.time() - 60, epoch_remaining_s=400.0)
    rows = rows_of(lockstep("status", "live").out)
    assert re.fullmatch(r"2:1\d so far, about 1:50 left", rows["time"])
    assert rows["epoch"] == "4 of 10, step 312 of 780, 6:40 left in this epoch"
    rows = rows_of(lockstep("status", "ended").out)
    assert (rows["time"], rows["epoch"]) == ("1:12", "4 of 10, step 312 of 780")


def test_the_reason_of_a_silent_or_failed_run_is_shown(tmp_path: Path, lockstep: Any) -> None:
    folder = run(tmp_path / "it", state="training")
    assert "its process is gone" in rows_of(lockstep("status", "it").out)["reason"]
    folder.write_status(state="failed", reason="ZeroDivisionError: \x1b[31mx")
    folder.record_failure("x")
    rows = rows_of(lockstep("status", "it").out)
    assert rows["reason"] == "ZeroDivisionError:  [31mx"
    assert rows["failure"] == "it/failure.txt"


@pytest.fixture
def three(tmp_path: Path) -> Path:
    root = tmp_path / "outputs"
    run(root / "day" / "10_a", "model.width=8", "optimizer.lr=0.1", started=NOW, best=0.5, epoch_s=2.0)
    run(root / "day" / "11_b", "model.width=8", "optimizer.lr=0.2", started=NOW + 9, best=0.75, state="failed")
    c = {"state": "stopped", "device": "NVIDIA H100", "epoch": 2, "best": 0.25}
    run(root / "day" / "12_c", "model.width=8", "seed=3", started=NOW + 5, **c)
    (root / "latest").symlink_to("day/11_b")
    return root


def names(said: Said) -> str:
    """The last letters of the runs, in order."""
    return "".join(line[1][-1] for line in said.lines)


def test_a_pipe_gets_every_fact_whole_the_newest_first(three: Path, lockstep: Any) -> None:
    said = lockstep("runs")
    assert said.code == 0
    assert said.out.splitlines()[0].split() == ["state", "run", "best", "settings", "epoch", "s/epoch", "started"]
    facts = ["val/accuracy 0.7500", "optimizer.lr=0.2", "4/10", "18.2 s", cells.moment(NOW + 9)]
    assert said.lines[0] == ["failed", "day/11_b", *facts]
    assert [line[0] for line in said.lines] == ["failed", "stopped", "finished"]
    assert said.lines[1][3] == "seed=3"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((), "bca"),
        (("--sort=started",), "acb"),
        (("--sort=-run",), "cba"),
        (("--sort=s/epoch",), "abc"),
        (("--sort=settings",), "abc"),
    ],
)
def test_runs_are_sorted_by_a_column(three: Path, lockstep: Any, order: tuple[str, ...], expected: str) -> None:
    assert names(lockstep("runs", *order)) == expected


def test_runs_without_a_value_come_last_in_either_direction(three: Path, lockstep: Any) -> None:
    run(three / "day" / "13_d", state=None, started=NOW + 1)
    assert names(lockstep("runs", "--sort=best")) == "cabd"
    assert names(lockstep("runs", "--sort=-best")) == "bacd"
    assert names(lockstep("runs")) == "bcda"  # made when its configuration was written


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("optimizer.lr", "abcd"),  # nobody typed it for the last two
        ("-optimizer.lr", "bacd"),
        ("model.width", "bcad"),  # 8 before 16; the newest of equal ones first
        ("val/accuracy", "dcba"),
        ("-test/accuracy", "cdba"),
        ("device", "bdac"),
    ],
)
def test_runs_are_sorted_by_typed_settings_metrics_and_facts(
    three: Path, lockstep: Any, order: str, expected: str
) -> None:
    run(three / "day" / "13_d", "model.width=16", started=NOW + 1, best=1e-4)
    for name in ("12_c", "13_d"):
        folder = RunFolder(three / "day" / name)
        status = json.loads(folder.status_file.read_text())
        folder.write_status(**status | {"metrics": {"val/accuracy": status["best"], "test/accuracy": 0.5}})
    assert names(lockstep("runs", f"--sort={order}")) == expected


def test_json_has_all_facts_of_every_run(three: Path, lockstep: Any) -> None:
    found = json.loads(lockstep("runs", "--json").out)
    assert [each["run"] for each in found] == ["day/11_b", "day/12_c", "day/10_a"]
    expected = TRAINED | {
        "best": 0.5,
        "epoch_s": 2.0,
        "started": NOW,
        "overrides": ["model.width=8", "optimizer.lr=0.1"],
    }
    assert expected.items() <= found[2].items()
    assert found[2]["path"] == str(three / "day" / "10_a")


def test_an_empty_folder_has_a_hint_and_a_missing_one_is_an_error(tmp_path: Path, lockstep: Any) -> None:
    said = lockstep("runs")
    assert (said.code, said.out) == (0, "")
    assert said.err == "No runs below outputs: start one with lockstep train, or name another folder.\n"
    assert lockstep("runs", "--json").out == "[]\n"
    said = lockstep("runs", "nowhere")
    assert said.code == 2
    assert said.err == "lockstep: nowhere is not a folder: give a folder of runs, or none for outputs/.\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--sort=-lr",), "--sort lr is in no run: choose from state, run, best, settings, epoch,"),
        (("--sort=xyz",), "started, train/loss, val/accuracy, or a typed setting."),
    ],
)
def test_wrong_options_are_one_clear_line(three: Path, lockstep: Any, words: tuple[str, ...], error: str) -> None:
    said = lockstep("runs", *words)
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert error in said.err


def test_names_cannot_move_the_cursor_and_lines_stay_lines(tmp_path: Path, lockstep: Any) -> None:
    run(tmp_path / "outputs" / os.fsdecode(b"a\x1b[2J\tb\nc\xe9"), "x=\u202e1", name="\x1b]0;x\x07")
    run(tmp_path / "outputs" / "b")
    said = lockstep("runs")
    assert said.code == 0
    assert {line[1] for line in said.lines} == {"a [2J b c", "b"}
    assert {line[3] for line in said.lines} == {"x= 1", "-"}


@pytest.fixture
def two(tmp_path: Path) -> tuple[RunFolder, RunFolder]:
    text = "seed: {}\noptimizer:\n  lr: {}\n  betas: [0.9, {}]\nmodel: {{_target_: M, width: 8}}\n"
    text += "logger: {{wandb: {{api_key: {}}}}}\n"
    a = run(
        tmp_path / "a", config=text.format(0, 0.1, 0.99, "http://x/token"), metrics={"val/loss": 0.5, "test/loss": 9}
    )
    b = run(tmp_path / "b", config=text.format(0, 1e-4, 0.95, "null") + "extra: true\n", state="stopped", best=0.5)
    a.write_summary({"test_accuracy": 0.75, "test_loss": 1, "epochs": 4})
    return a, b


def test_settings_that_differ_and_results_stand_side_by_side(two: Any, lockstep: Any) -> None:
    said = lockstep("compare", "a", "b")
    assert said.code == 0
    rows = {line.split()[0]: re.split("  +", line)[1:] for line in said.out.splitlines() if line}
    results = list(rows)[list(rows).index("results") + 1 :]
    assert {key: rows[key] for key in rows if key not in results} == {
        "A": ["a"],
        "B": ["b"],
        "settings": ["A", "B"],
        "optimizer.lr": ["0.1", "0.0001"],
        "optimizer.betas": ["[0.9,0.99]", "[0.9,0.95]"],
        "logger.wandb.api_key": ["***", "null"],
        "extra": ["null", "true"],
        "results": ["A", "B"],
    }
    assert rows["state"] == ["finished", "stopped"]
    assert rows["best"] == ["0.9812", "0.5000"]
    assert rows["val/loss"] == ["0.5000", "-"]
    assert rows["test/accuracy"] == ["0.7500", "-"]
    assert rows["epoch_s"] == ["18.2 s", "18.2 s"]
    assert rows["device"] == ["CPU, 1 thread each"] * 2
    assert rows["test/loss"] == ["1", "-"]  # of the summary
    assert "token" not in said.out
    assert "One run of each says nothing about the settings." in said.out


def test_a_comparison_as_json_has_the_values_as_they_are(two: Any, lockstep: Any) -> None:
    found = json.loads(lockstep("compare", "a", "b", "--json").out)
    assert found["runs"] == ["a", "b"]
    assert found["settings"]["optimizer.betas"] == [[0.9, 0.99], [0.9, 0.95]]
    assert found["settings"]["extra"] == [None, True]
    assert found["results"]["test/accuracy"] == [0.75, None]
    assert found["results"]["workers"] == [2, 2]


def test_true_and_1_and_1_0_are_different_settings(tmp_path: Path, lockstep: Any) -> None:
    for name, value in {"a": "true", "b": "1", "c": "1.0", "d": ".nan", "e": "2026-11-21"}.items():
        run(tmp_path / name, config=f"x: {value}\ny: {{}}\n")
    assert json.loads(lockstep("compare", "a", "b", "c", "d", "e", "--json").out)["settings"] == {
        "x": [True, 1, 1.0, None, "2026-11-21"]
    }
    for pair in (("a", "b"), ("b", "c")):
        assert "x" in json.loads(lockstep("compare", *pair, "--json").out)["settings"]


@pytest.mark.full
def test_runs_that_do_not_fit_next_to_each_other_are_in_a_second_table(two: Any) -> None:
    lines, _ = seen(40, "compare", "a", "b")
    assert max(map(len, lines)) <= 40
    assert sum(bool(re.fullmatch(r"results +[AB]", line)) for line in lines) == 2
    lines, _ = seen(100, "compare", "a", "a")
    assert "All settings are the same." in lines


def test_runs_that_cannot_be_compared_are_named(two: Any, lockstep: Any) -> None:
    said = lockstep("compare", "a", "nowhere")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("lockstep: nowhere is not a run folder: it has no config.yaml. Newest runs: ")
    assert "compare needs two or more runs" in lockstep("compare", "a").err
    for text in ("a: [\n", "- 1\n", "x: [{? [1, 2]: 3}]\n", "a: " + "[" * 5000 + "]" * 5000 + "\n"):
        two[1].config.write_text(text)
        said = lockstep("compare", "a", "b")
        assert (said.code, len(said.err.splitlines())) == (2, 1)
        assert said.err.startswith("lockstep: b/config.yaml cannot be read: ")


@pytest.mark.full
def test_numbers_sizes_and_durations_are_readable() -> None:
    assert [wording.size_text(n) for n in (0, 1023, 2048, 3 * 2**30, 5000 * 2**30)] == [
        "0 bytes", "1,023 bytes", "2.0 KiB", "3.0 GiB", "5,000.0 GiB",
    ]  # fmt: skip
    assert [cells.number(x) for x in (0.0, 0.98125, 3, 1e-5, 123456.0, None)] == [
        "0.0000", "0.9812", "3", "1e-05", "1.235e+05", "-",
    ]  # fmt: skip
    assert cells.moment(1e17) == "-"
    seconds = (59.94, 3599, 72 * 3600 - 1, 100 * 3600)
    assert [duration(each) for each in seconds] == ["59.9 s", "59:59", "71:59:59", "4 d 4 h"]
