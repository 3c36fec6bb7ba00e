"""`lockstep status`, `runs`, `compare` and `runs --prune`: their output, and the runs that are never removed."""

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.monitoring import cells, selection
from lockstep.runs import discovery
from lockstep.runs.folder import BENCHMARK, LIVE_STATES, SILENT_S, RunFolder
from lockstep.system import wording
from lockstep.system.terminal import duration
from lockstep.system.wording import plural
from tests.support.holding import HOLD, begun_by_another_process
from tests.support.screens import on_terminal, seen

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
def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    run(tmp_path / "it", state="training", host="node07")
    lines, text = seen(100, "status", "it")
    assert f"progress       {'━' * 12}╸{'━' * 19}  40.0 %" in lines
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
        (("--sort", "started"), "acb"),
        (("--sort", "-run"), "cba"),
        (("--sort", "s/epoch"), "abc"),
        (("--sort", "settings"), "abc"),
    ],
)
def test_runs_are_sorted_by_a_column(three: Path, lockstep: Any, order: tuple[str, ...], expected: str) -> None:
    assert names(lockstep("runs", *order)) == expected


def test_runs_without_a_value_come_last_in_either_direction(three: Path, lockstep: Any) -> None:
    run(three / "day" / "13_d", state=None, started=NOW + 1)
    assert names(lockstep("runs", "--sort", "best")) == "cabd"
    assert names(lockstep("runs", "--sort", "-best")) == "bacd"
    assert names(lockstep("runs")) == "bcda"  # made when its configuration was written


@pytest.mark.parametrize(
    ("terms", "expected"),
    [("h100 seed", "c"), ("h100 lr", ""), ("11_", "b"), ("state=finished", "a"), ("digits width=8", "bca")],
)  # fmt: skip
def test_every_term_of_the_filter_must_occur(three: Path, lockstep: Any, terms: str, expected: str) -> None:
    said = lockstep("runs", "--filter", terms)
    assert names(said) == expected
    if not expected:
        assert said.err == "None of the 3 runs below outputs matches: remove --filter or --state.\n"


def test_states_are_chosen_by_their_names(three: Path, lockstep: Any) -> None:
    assert names(lockstep("runs", "--state", "failed,stopped")) == "bc"
    run(three / "silent_d", state="training")
    assert names(lockstep("runs", "--state", "no-signal")) == "d"
    said = lockstep("runs", "--state", "lost")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("lockstep: --state lost is not a state: choose from not-started, starting,")


OTHERWISE = "optimizer: {lr: 0.05, momentum: 0.9, betas: [0.9, 0.99]}\nmodel: {_target_: M}\n"


@pytest.fixture
def four(three: Path) -> Path:
    """A run more, whose settings are in its configuration, and which has a note and tags."""
    last = run(three / "day" / "13_d", "model.width=16", config=OTHERWISE, started=NOW + 1, best=1e-4)
    for run_ in (last, RunFolder(three / "day" / "12_c")):
        status = json.loads(run_.status_file.read_text())
        run_.write_status(**status | {"metrics": {"val/accuracy": status["best"], "test/accuracy": 0.5}})
    return three


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("optimizer.lr", "dabc"),  # 12_c has none
        ("-optimizer.lr", "badc"),
        ("model.width", "bcad"),  # 8 before 16; the newest of equal ones first
        ("val/accuracy", "dcba"),
        ("-test/accuracy", "cdba"),
        ("optimizer.momentum", "dbca"),
    ],
)
def test_runs_are_sorted_by_any_setting_and_metric(four: Path, lockstep: Any, order: str, expected: str) -> None:
    assert names(lockstep("runs", "--sort", order)) == expected


def test_any_setting_and_metric_is_a_column(four: Path, lockstep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    look = discovery.look
    noted = {"tags": ["keep", "paper 1"], "note": "good\tone"}
    monkeypatch.setattr(discovery, "look", lambda run: look(run) | (noted if run.name.endswith("13_d") else {}))
    columns = "optimizer.lr,optimizer.betas,test/accuracy,state,tags,note,device"
    said = lockstep("runs", "--columns", columns, "--sort", "run")
    assert said.out.splitlines()[0].split() == ["run", *columns.split(",")]
    cpu = "CPU, 1 thread each"
    assert said.lines[0] == ["day/10_a", "0.1", "-", "-", "finished", "-", "-", cpu]
    assert said.lines[3] == ["day/13_d", "0.05", "[0.9,0.99]", "0.5000", "finished", "keep, paper 1", "good one", cpu]
    found = json.loads(lockstep("runs", "--columns", "optimizer.lr,tags", "--sort", "run", "--json").out)
    assert [(each["optimizer.lr"], each["tags"]) for each in found[2:]] == [(None, None), ("0.05", noted["tags"])]
    kept = ("tag=keep", "tag=paper-1", "tag!=other", "tags=keep state=finished", "good paper")
    assert [names(lockstep("runs", "--filter", terms)) for terms in kept] == ["d"] * len(kept)
    assert names(lockstep("runs", "--filter", "tag!=keep")) == ""


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ("optimizer.lr>=0.1", "ba"),
        ("optimizer.lr=1e-1", "a"),
        ("optimizer.lr!=0.1", "bd"),  # not a run without it
        ("optimizer.lr<0.1", "d"),
        ("model.width<=8 val/accuracy>0.3", "ba"),
        ("state!=failed best<0.5", "cd"),
        ("optimizer.lr=0.2", "b"),
        ("lr=0.", "ba"),  # as a text, which needs no key
        ("optimizer.betas=[0.9,0.99]", "d"),
        ("model._target_=m", "d"),
        ("model.width>auto", ""),
        ("s/epoch<18", "a"),
        ("started>2023-11-14", "bcda"),
        ("started<2023-11-14", ""),
    ],
)
def test_a_word_of_the_filter_may_compare_a_value(four: Path, lockstep: Any, terms: str, expected: str) -> None:
    assert names(lockstep("runs", "--filter", terms)) == expected


def test_a_configuration_that_cannot_be_read_has_no_settings_and_a_secret_is_not_shown(
    four: Path, lockstep: Any
) -> None:
    (four / "day" / "12_c" / "config.yaml").write_text("a: " + "[" * 5000)
    run(four / "day" / "14_e", config="optimizer: {lr: 0.7}\ndata: {api_token: abcdefgh}\n")
    said = lockstep("runs", "--columns", "optimizer.lr,data.api_token", "--sort", "run")
    assert [line[1] for line in said.lines] == ["0.1", "0.2", "-", "0.05", "0.7"]
    assert said.lines[4][2] == "***"


def test_tags_may_be_asked_for_before_any_run_has_one(four: Path, lockstep: Any) -> None:
    assert [line[1] for line in lockstep("runs", "--columns", "tags", "--filter", "state=failed").lines] == ["-"]
    assert lockstep("runs", "--filter", "tag!=poor").code == 0


def test_a_configuration_is_parsed_only_for_a_setting_that_it_may_have(
    four: Path, lockstep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(four / "day" / "14_e", state=None)  # without a best value
    monkeypatch.setattr(selection, "_settings", None)
    assert names(lockstep("runs", "--sort", "best", "--filter", "state!=failed")) == "dcae"
    assert names(lockstep("runs", "--filter", "lr=0.")) == "ba"


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
    assert lockstep("runs", "--json", "--filter", "nothing").out == "[]\n"


def test_an_empty_folder_has_a_hint_and_a_missing_one_is_an_error(tmp_path: Path, lockstep: Any) -> None:
    said = lockstep("runs")
    assert (said.code, said.out) == (0, "")
    assert said.err == "No runs below outputs: start one with lockstep train, or name another folder.\n"
    said = lockstep("runs", "nowhere")
    assert said.code == 2
    assert said.err == "lockstep: nowhere is not a folder: give a folder of runs, or none for outputs/.\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--sort", "xyz"), "no run below outputs has xyz: choose from state, run, best, settings, epoch,"),
        (("--sort", "-lr"), "no run below outputs has lr: did you mean optimizer.lr?"),
        (("--columns", "run,val/acuracy"), "no run below outputs has val/acuracy: did you mean val/accuracy"),
        (("--filter", "model.widht<1"), "no run below outputs has model.widht: did you mean model.width?"),
        (("--filter", "optimizer.lr>"), "optimizer.lr> is incomplete: write it as optimizer.lr>=0.05."),
        (("--filter", "optimizer.lr<big"), "optimizer.lr<big needs a number."),
        (("--prune", "--filter", "accuracy>0"), "no run below outputs has accuracy: did you mean val/accuracy?"),
        (("--watch",), "--watch needs a terminal: remove it to print once."),
        (("--yes",), "--yes needs --prune"),
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


@pytest.mark.full
def test_watching_shows_changes_until_ctrl_c_and_exits_with_0(three: Path) -> None:
    with on_terminal(100, "runs", "--watch") as shown:
        shown.wait_for("day/10_a")
        run(three / "day" / "13_d", state=None)
        RunFolder(three / "day" / "10_a").write_status(**TRAINED | {"state": "training", "host": "x", "epoch": 9})
        shown.wait_for("training")
        shown.type("\x03")
        assert shown.end() == 0
    after = shown.text.partition("\x1b[?1049l")[2]  # of the alternate screen
    assert "9/10" in after  # the last table stays


@pytest.mark.full
def test_sigterm_restores_the_terminal(three: Path) -> None:
    with on_terminal(100, "runs", "--watch") as shown:
        shown.wait_for("day/10_a")
        shown.process.send_signal(signal.SIGTERM)
        assert shown.end() == 128 + signal.SIGTERM
    assert "\x1b[?1049l" in shown.text


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
    assert "lockstep eval" not in said.out  # b has no accuracy on a test set
    two[1].write_summary({"test_accuracy": 0.8})
    commands = ["lockstep eval a --output A.csv", "lockstep eval b --output B.csv", "lockstep compare A.csv B.csv"]
    assert lockstep("compare", "a", "b").out.splitlines()[-3:] == [f"  {command}" for command in commands]


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


def left(root: Path) -> set[str]:
    """Names of the run folders that are there."""
    return {path.parent.name for path in root.glob("**/config.yaml")}


@pytest.fixture
def every_state(tmp_path: Path) -> Path:
    """A run in each state, without checkpoints but for two: `failed_c` and `silent_c` have one."""
    root = tmp_path / "outputs"
    for name, state in {"finished": "finished", "stopped": "stopped", "failed": "failed", "silent": "training"}.items():
        run(root / "day" / name, state=state)
    run(root / "day" / "live", state="training", host="another machine")
    run(root / "day" / "unstarted", state=None)
    for name, state in (("failed_c", "failed"), ("silent_c", "training")):
        folder = run(root / "day" / name, state=state)
        folder.checkpoints.mkdir()
        folder.last_checkpoint.touch()
    (run(root / "day" / "broken").path / "status.json").write_text("{")
    (root / "day" / "failed" / "notes.json").write_text('{"tags": ["poor"]}')
    return root


EVERY = {"finished", "stopped", "failed", "silent", "live", "unstarted", "failed_c", "silent_c", "broken"}


@pytest.mark.parametrize(
    ("words", "removed"),
    [
        ((), {"failed", "silent", "unstarted"}),
        (("--filter", "unst"), {"unstarted"}),
        (("--filter", "seed=0"), set()),  # the default, which nobody typed
        (("--filter", "seed<1"), {"failed", "silent", "unstarted"}),
        (("--filter", "tag=poor"), {"failed"}),
        (("--filter", "poor"), set()),  # a word of a note may mean anything
        (("--state", "stopped,no-signal"), {"stopped", "silent", "silent_c"}),
        (("--state", "finished", "--filter", "silent"), set()),
        (("--state", "finished,stopped,failed,no-signal,not-started"), EVERY - {"live", "broken"}),
    ],
)
def test_prune_removes_the_selected_runs(every_state: Path, lockstep: Any, words: Any, removed: set[str]) -> None:
    said = lockstep("runs", "--prune", "--yes", *words)
    assert said.code == 0
    assert left(every_state) == EVERY - removed
    assert f"Removed {plural(len(removed), 'run')}" in said.out or not removed


def test_prune_refuses_live_and_broken_states(every_state: Path, lockstep: Any) -> None:
    for state in (*LIVE_STATES, "broken"):
        said = lockstep("runs", "--prune", "--yes", "--state", f"failed,{state}")
        assert said.code == 2
        assert f"--prune does not remove runs that are {state}: choose from stopped, pruned, finished" in said.err
    assert left(every_state) == EVERY


def test_without_a_terminal_nothing_is_removed_without_yes(every_state: Path, lockstep: Any) -> None:
    said = lockstep("runs", "--prune")
    assert said.code == 2
    assert "add --yes" in said.err
    assert "day/failed" in said.out
    assert left(every_state) == EVERY


@pytest.mark.parametrize(("typed", "code"), [("\r", 0), ("yess\r", 0), ("\x03", 130), ("Y\r", 0)])
def test_only_a_yes_removes(every_state: Path, typed: str, code: int) -> None:
    (every_state / "day" / "failed" / "big").write_bytes(b"x" * 3000)
    with on_terminal(80, "runs", "--prune") as shown:
        text = shown.wait_for(r"Remove 3 runs, .*\? \[y/N\] ")
        assert re.search(r"failed +day/failed +3\.\d KiB", re.sub(r"\x1b\[[0-9;]*m", "", text))
        shown.type(typed)
        assert shown.end() == code
    is_yes = typed.lower().strip() in ("y", "yes")
    assert left(every_state) == (EVERY - {"failed", "silent", "unstarted"} if is_yes else EVERY)
    assert ("Nothing was removed." in shown.text) != is_yes


def test_a_run_with_a_live_process_stays_whatever_its_status(every_state: Path, lockstep: Any) -> None:
    with begun_by_another_process(HOLD, every_state / "day" / "failed"):
        said = lockstep("runs", "--prune", "--yes")
    assert "Kept: day/failed: it is being trained" in said.err
    assert "day/failed " not in said.out  # nor was it offered
    assert left(every_state) == EVERY - {"silent", "unstarted"}


@pytest.mark.full
def test_a_run_that_resumes_before_the_answer_stays(every_state: Path) -> None:
    with on_terminal(80, "runs", "--prune") as shown:
        shown.wait_for(r"\[y/N\]")
        folder = RunFolder(every_state / "day" / "failed")
        folder.write_status(**TRAINED | {"state": "stopped"})
        with begun_by_another_process(HOLD, every_state / "day" / "silent"):
            shown.type("y\r")
            assert shown.end() == 1
    assert left(every_state) == EVERY - {"unstarted"}
    assert "day/failed: it was resumed in the meantime" in shown.text
    assert "day/silent: it is being trained" in shown.text


def test_links_are_removed_and_not_followed(every_state: Path, tmp_path: Path, lockstep: Any) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    failed = every_state / "day" / "failed"
    (failed / "data").symlink_to(precious)
    (failed / "deeper").mkdir()
    (failed / "deeper" / "data").symlink_to(precious)
    (failed / "file").symlink_to(precious / "file")
    (every_state / "linked").symlink_to(run(tmp_path / "elsewhere", state="failed").path)
    assert lockstep("runs", "--prune", "--yes").code == 0
    assert not failed.exists()
    assert (precious / "file").exists()
    assert (tmp_path / "elsewhere" / "config.yaml").exists()


@pytest.mark.parametrize("where", ["outputs", "outputs/day"])
def test_latest_names_the_newest_that_is_left_or_goes(tmp_path: Path, lockstep: Any, where: str) -> None:
    root = tmp_path / "outputs"
    for age, name in enumerate(("newest", "second", "third")):
        run(root / "day" / name, state="failed", started=NOW - age)
    latest = root / "latest"
    latest.symlink_to("day/newest")
    lockstep("runs", where, "--prune", "--yes", "--filter", "newest")
    assert os.readlink(latest) == "day/second"
    lockstep("runs", where, "--prune", "--yes", "--filter", "third")
    assert os.readlink(latest) == "day/second"
    lockstep("runs", where, "--prune", "--yes")
    assert not latest.is_symlink()


def test_emptied_folders_go_and_others_stay(tmp_path: Path, lockstep: Any) -> None:
    root = tmp_path / "outputs"
    for name in ("one/sweep/0", "one/sweep/1", "two/run", "three/failed"):
        run(root / name, state="failed")
    run(root / "three" / "good")
    (root / "two" / "notes.txt").touch()
    (root / "empty").mkdir()
    assert lockstep("runs", "--prune", "--yes").code == 0
    assert {path.name for path in root.iterdir()} == {"two", "three", "empty"}
    assert left(root) == {"good"}
    assert lockstep("runs", "outputs/three", "--prune", "--yes", "--state", "finished").code == 0
    assert (root / "three").is_dir()  # the folder that was named stays


def test_a_run_that_contains_another_stays_unless_both_go(tmp_path: Path, lockstep: Any) -> None:
    root = tmp_path / "outputs"
    run(root / "outer", state="failed")
    run(root / "outer" / "inner", state="finished")
    said = lockstep("runs", "--prune", "--yes")
    assert (said.code, "outer: it contains another run" in said.err) == (1, True)
    assert left(root) == {"outer", "inner"}
    assert "Removed 2 runs" in lockstep("runs", "--prune", "--yes", "--state", "failed,finished").out
    assert left(root) == set()


def test_a_run_that_contains_a_job_that_waits_stays(tmp_path: Path, lockstep: Any) -> None:
    root = tmp_path / "outputs"
    run(root / "outer", state="failed")
    run(root / "outer" / "inner", state=None).lock_file.unlink()
    assert "outer: it contains another run" in lockstep("runs", "--prune", "--yes").err
    assert left(root) == {"outer", "inner"}


def test_the_runs_of_a_benchmark_stay(tmp_path: Path, lockstep: Any) -> None:
    run(tmp_path / "outputs" / "it_benchmark" / "cpu", state="failed")
    (tmp_path / "outputs" / "it_benchmark" / BENCHMARK).write_text("{}")
    said = lockstep("runs", "--prune", "--yes", "--state", "failed")
    assert "it_benchmark/cpu: it is part of a benchmark" in said.err
    assert "Nothing to remove" in said.out
    assert left(tmp_path) == {"cpu"}


def test_a_folder_of_another_tool_or_a_run_of_another_machine_stays(
    tmp_path: Path, lockstep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "outputs"
    run(root / "others_folder", state=None).lock_file.unlink()  # such as the config.yaml of a logger
    run(root / "starting", state=None, started=time.time())
    folder = run(root / "elsewhere", state="training", host="node07")
    os.utime(folder.status_file, (NOW, NOW))
    now = time.time()
    monkeypatch.setattr("time.time", lambda: now + 2 * SILENT_S)  # not the clock of the files
    said = lockstep("runs", "--prune", "--yes")
    assert left(root) == {"others_folder", "starting", "elsewhere"}
    for reason in ("it was never trained", "it may be starting", "node07, whose processes cannot be checked here"):
        assert reason in said.err
    lockstep("runs", "--prune", "--yes", "--state", "no-signal")
    assert left(root) == {"others_folder", "starting"}


def test_an_interrupted_removal_leaves_a_run_that_can_be_removed(
    every_state: Path, lockstep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(every_state / "day" / "failed")
    folder.curves("val").mkdir()

    def interrupted(path: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", interrupted)
        assert lockstep("runs", "--prune", "--yes", "--filter", "failed").code == 130
    assert folder.config.exists()
    assert folder.lock_file.exists()
    lockstep("runs", "--prune", "--yes", "--state", "failed,not-started")
    assert not folder.path.exists()


def test_a_failed_removal_is_reported_and_the_others_go(
    every_state: Path, lockstep: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = RunFolder.remove

    def failing(folder: RunFolder) -> None:
        if folder.path.name == "failed":
            raise PermissionError(1, "Operation not permitted")
        remove(folder)

    monkeypatch.setattr(RunFolder, "remove", failing)
    said = lockstep("runs", "--prune", "--yes")
    assert said.code == 1
    assert "day/failed: it could not be removed: Operation not permitted" in said.err
    assert left(every_state) == EVERY - {"silent", "unstarted"}


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
