"""Parts of sweeps: assigned devices, the ledger, the table of trials, and the jobs of a search."""

import contextlib
import csv
import gzip
import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from lockstep.cluster import scheduler, submission
from lockstep.cluster.record import JobRecord
from lockstep.cluster.scheduler import Scheduled
from lockstep.config.composing.sweep_space import separate_space
from lockstep.config.errors import ConfigError
from lockstep.config.saved import config_file
from lockstep.config.schema.configuration import Config
from lockstep.inference import tables
from lockstep.launch import child
from lockstep.runs import files
from lockstep.runs.folder import EXIT_FAILED, EXIT_STOPPED, PRUNED, RunFolder
from lockstep.sweeps import array, command, job_pool
from lockstep.sweeps.command import open_ledger
from lockstep.sweeps.course import Grid, SweepLoop
from lockstep.sweeps.devices import Devices, DeviceSlot, Machine, Need, need, num_parallel
from lockstep.sweeps.job_pool import JobPool
from lockstep.sweeps.pool import Pool, Running, environ_of
from lockstep.sweeps.views import View
from lockstep.system.signals import STOP_SIGNALS
from lockstep.trials import ledger as ledgers
from lockstep.trials import out_of_fold
from lockstep.trials.differences import Spread, bounded, spread
from lockstep.trials.ledger import Ledger, Trial, sweep_overrides, trial_overrides
from lockstep.trials.results import Objective, monitored_objective
from lockstep.trials.table import Table, table, write
from tests.support import composed, job_records
from tests.support.harness import environ

CPU = Machine((), (0, 1, 2, 3))
GPUS = Machine(("4", "5", "GPU-6", "7"), tuple(range(16)))
ACCURACY = Objective("val/accuracy", True)


def config_of(*overrides: str) -> Config:
    return composed.config_of("strategy=cpu", *overrides)


def on_gpus(devices: object, *overrides: str, strategy: str = "auto") -> Config:
    """As it is where there are GPUs, which here there are not."""
    tree = config_file.to_tree(config_of(*overrides))
    tree["trainer"]["devices"], tree["strategy"]["name"] = devices, strategy
    return Config.model_validate(tree)


# -- devices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "num_trials", "expected"),
    [
        ((), 8, 4),
        ((), 3, 3),
        (("trainer.devices=2",), 8, 2),
        (("trainer.devices=9",), 8, 1),
        (("launcher.parallel=2",), 8, 2),
        (("launcher.parallel=1",), 8, 1),
    ],
)
def test_num_parallel_default(overrides: Sequence[str], num_trials: int, expected: int) -> None:
    """As many trials run as have a core for each worker."""
    config = config_of(*overrides)
    assert num_parallel(config.launcher, CPU, num_trials, [config]) == expected


def test_num_parallel_above_cores() -> None:
    config = config_of("launcher.parallel=5")
    with pytest.raises(ValueError, match="use at most 4"):
        num_parallel(config.launcher, CPU, 8, [config])


@pytest.mark.parametrize(
    ("devices", "strategy", "at_once", "expected"),
    [
        ("auto", "auto", 4, Need(1, 1)),
        ("auto", "auto", 1, Need(4, 4)),
        ("auto", "single_device", 1, Need(1, 1)),
        (2, "ddp", 4, Need(2, 2)),
        ([0, 3], "ddp", 4, Need(2, (0, 3))),
        (3, "cpu", 4, Need(3, ())),
    ],
)
def test_need_devices(devices: object, strategy: str, at_once: int, expected: Need) -> None:
    assert need(on_gpus(devices, strategy=strategy), GPUS, at_once) == expected


@pytest.mark.parametrize(
    ("devices", "words"), [(5, "use at most 4"), ([1, 4], "use smaller numbers")]
)
def test_need_too_many_gpus(devices: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        need(on_gpus(devices), GPUS, 4)


@pytest.mark.parametrize(("machine", "kind"), [(GPUS, "gpus"), (CPU, "cores")])
def test_devices_disjoint_and_all_used(machine: Machine, kind: str) -> None:
    draw = random.Random(0)
    devices = Devices(machine, num_parallel=4)
    running: list[DeviceSlot] = []
    used: set[object] = set()
    for _ in range(500):
        count = draw.choice([1, 1, 2, 4])
        shard = devices.take(Need(count, count if kind == "gpus" else ()))
        if shard is not None:
            running.append(shard)
            assert len(getattr(shard, kind)) == count
            used |= set(getattr(shard, kind))
        held = [device for each in running for device in getattr(each, kind)]
        assert len(held) == len(set(held))
        if running and draw.random() < 0.6:
            devices.used_slots.remove(running.pop(draw.randrange(len(running))))
    assert used == set(getattr(machine, kind))


def test_devices_numbered_gpus() -> None:
    """They are waited for, and stay visible under their numbers."""
    devices = Devices(GPUS, num_parallel=4)
    first = devices.take(Need(1, 1))
    assert first is not None
    assert devices.take(Need(2, (0, 2))) is None
    devices.used_slots.remove(first)
    named, other = devices.take(Need(2, (0, 2))), devices.take(Need(2, 2))
    assert named is not None
    assert named.gpus == ("4", "GPU-6")
    assert "CUDA_VISIBLE_DEVICES" not in environ_of(named, {})
    assert other is not None
    assert environ_of(other, {})["CUDA_VISIBLE_DEVICES"] == "5,7"


IMPORTS = """
import torch
called = []
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    def calls(*given, real=getattr(torch._C, name), name=name):
        called.append(name)
        return real(*given)
    setattr(torch._C, name, calls)
from lockstep.launch.worker import import_training
import_training()
print(called, torch.cuda.is_initialized())
"""


@pytest.mark.processes
@pytest.mark.skipif(torch.version.cuda is None, reason="a build of torch without CUDA")
def test_fork_server_without_cuda() -> None:
    """CUDA does not work in the forks of a process that has initialized it."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=environ(), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[] False\n", "")


# -- the ledger ------------------------------------------------------------------------------------


def book(
    path: Path, *settings: str, name: str | None = None, command: Sequence[str] = ()
) -> Ledger:
    """A ledger with a trial for each of some settings, like "lr=1 seed=0"."""
    path.mkdir(parents=True)
    ledger = Ledger.open(path, name, command)
    for words in settings:
        ledger.add(words.split(), str(ledger.next_number)).folder.path.mkdir()
    ledger.write()
    for folder in (RunFolder(path), *(trial.folder for trial in ledger.trials)):
        folder.claim()
    return ledger


def finish(trial: Trial, best: float, *, loss: float | None = None, **more: object) -> None:
    trial.folder.write_summary({"best": best, "training_s": 75.0, **more})
    trial.folder.write_status(
        state="finished", epoch=3, max_epochs=3, monitor="val/accuracy", host="elsewhere"
    )
    if loss is not None:
        files.write_rows(
            trial.folder.metrics, [{"epoch": 1, "val/accuracy": best, "val/loss": loss}]
        )


def finish_all(ledger: Ledger, *values: float) -> None:
    for trial, best in zip(ledger.trials, values, strict=True):
        finish(trial, best)


def test_ledger_read_again(tmp_path: Path) -> None:
    ledger = book(
        tmp_path / "sweep", "lr=1 seed=0", "lr=2 seed=0", name="rates", command=["lr=1,2"]
    )
    again = Ledger.open(ledger.path)
    assert (again.name, again.command, again.trials) == (ledger.name, ledger.command, ledger.trials)
    assert again.find(["seed=0", "lr=2"]) is again.trials[1]
    assert again.find(["lr=3", "seed=0"]) is None
    assert again.add(["lr=3", "seed=0"], "deep/er").number == 2
    with pytest.raises(ValueError, match="deep/er"):
        again.add(["lr=4"], "deep/er")
    again.write()
    assert Ledger.open(ledger.path).trials[2].folder.path == ledger.path / "deep" / "er"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: '{"trials": 3}', r"sweep\.json"),
        (lambda text: "{", r"sweep\.json"),
        (lambda text: text.replace('"folder": "0"', '"folder": "../x"'), "outside of the sweep"),
    ],
    ids=["no trials", "half of it", "a folder outside"],
)
def test_ledger_damaged(tmp_path: Path, damage: Callable[[str], str], message: str) -> None:
    """It is skipped by a search for sweeps, and refused by its path."""
    file = book(tmp_path / "day" / "sweep", "lr=1").path / "sweep.json"
    file.write_text(damage(file.read_text()))
    assert ledgers.find(tmp_path, None, ["lr=1,2"]) is None
    with pytest.raises(ConfigError, match=message), open_ledger(file.parent, None, []):
        pass


def test_trial_running_elsewhere(tmp_path: Path) -> None:
    ledger = book(tmp_path / "sweep", "lr=1", "lr=2")
    command._live_jobs(ledger, is_submitted=False)
    ledger.trials[1].folder.write_status(state="training", host="elsewhere")
    with pytest.raises(ConfigError, match="1 is being trained by another process"):
        command._live_jobs(ledger, is_submitted=False)


@pytest.mark.parametrize(
    ("task", "state"),
    [("train", "finished"), ("train-without-test", "finished"), ("test", "failed")],
)
def test_trial_killed_after_summary(tmp_path: Path, task: str, state: str) -> None:
    ledger = book(tmp_path / "sweep", "lr=1")
    (trial,) = ledger.trials
    finish(trial, 0.5)
    trial.folder.update_status(state="training")
    pool = Pool(Devices(CPU, num_parallel=1), lambda trial: Need(1, ()))
    view = View(partial(table, ledger, ACCURACY), 1, is_silent=True)
    course = SweepLoop(ledger, Grid([]), pool, view, 1, task)
    assert course._end(trial, -signal.SIGKILL) == state


@pytest.mark.parametrize(
    ("states", "best", "test", "reason"),
    [
        (("finished", "queued"), 0.5, "best", "trial 1 is queued"),
        (
            ("finished", "no signal", "broken"),
            0.5,
            "best",
            "trial 1 is interrupted, trial 2 is broken",
        ),
        (
            ("finished", "finished"),
            None,
            "best",
            "no setting has a value of val/accuracy in all of its trials",
        ),
        (("finished", "queued"), 0.5, "none", ""),
    ],
)
def test_untestable_best_trial(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    states: Sequence[str],
    best: float | None,
    test: str,
    reason: str,
) -> None:
    """Trials of an earlier command under the same name, and a metric that is not a number."""
    ledger = book(tmp_path / "sweep", *(f"lr={number}" for number in range(len(states))))
    for trial, state in zip(ledger.trials, states, strict=True):
        if state == "finished":
            trial.folder.write_summary({"best": best, "training_s": 75.0})
        if state == "broken":
            trial.folder.status_file.write_text("{")
        elif state != "queued":
            trial.folder.write_status(
                state="training" if state == "no signal" else state, host=socket.gethostname()
            )
    config = config_of(f"sweep.test={test}", "silent=true")
    code = command.run_sweep(command.Sweep(ledger, config, ()), Grid([]), {}, total=1, num_done=1)
    assert (code, reason in capsys.readouterr().err) == (1 if reason else 0, True)


def test_find_ledger(tmp_path: Path) -> None:
    """By its name, else by its command in any order."""
    rates = book(tmp_path / "d1" / "10_rates", name="rates", command=["lr=1,2"]).path
    book(tmp_path / "d1" / "11_sweep", command=["lr=1,2", "seed=0,1"])
    newest = book(tmp_path / "d2" / "10_sweep", command=["lr=1,2", "seed=0,1"]).path
    for name, words, expected in (
        ("rates", ["lr=9"], rates),
        (None, ["seed=0,1", "lr=1,2"], newest),
        (None, ["lr=1,2"], None),
        ("other", ["lr=1,2"], None),
    ):
        assert ledgers.find(tmp_path, name, words) == expected


def test_sweep_and_trial_identity() -> None:
    """How and where a sweep runs does not change its identity, nor that of its trials."""
    typed = [
        "lr=1,2",
        "launcher.parallel=2",
        "search=tpe",
        "search.num_trials=9",
        "silent=true",
        "hydra.sweep.subdir=x",
    ]
    assert sweep_overrides(typed) == ["lr=1,2", "search=tpe"]
    assert trial_overrides(typed) == ["lr=1,2"]
    assert trial_overrides(["lr=1", "seed=0", "lr=2"]) == ["lr=2", "seed=0"]  # the last one counts


@pytest.mark.processes
def test_failed_sweep_saves_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = book(tmp_path / "sweep", "lr=1")
    process = child.start(partial(_saves, tmp_path / "saved"), environ())
    monkeypatch.setattr(Grid, "propose", Mock(side_effect=OSError("disk full")))
    pool = Pool(Devices(CPU, num_parallel=1), lambda trial: Need(1, ()))
    view = View(partial(table, ledger, ACCURACY), 1, is_silent=True)
    pool.running.append(Running(ledger.trials[0], DeviceSlot((), (0,), 1, False), process))
    with pytest.raises(OSError, match="disk full"):
        SweepLoop(ledger, Grid([]), pool, view, 1, "train").run()
    assert (tmp_path / "saved").exists()


def _saves(path: Path) -> int:
    signal.sigwait({signal.SIGTERM})
    path.touch()
    return 0


# -- the table -------------------------------------------------------------------------------------


def spread_of(*accuracies: float, are_folds: bool) -> Spread:
    return bounded(spread(accuracies, are_folds=are_folds), "val/accuracy", accuracies)


def best_trials(found: Table) -> tuple[int, ...]:
    assert found.best is not None
    return tuple(found.best.trials)


def test_pruned_value_ignored(tmp_path: Path) -> None:
    ledger = book(tmp_path / "sweep", "w=8 lr=1", "w=8 lr==1+1", "w=8 lr=3")
    finish(ledger.trials[0], 0.7)
    finish(ledger.trials[1], 0.9, test_accuracy=0.8)
    ledger.trials[2].folder.write_status(state="pruned", host="elsewhere")
    files.write_rows(ledger.trials[2].folder.metrics, [{"epoch": 1, "val/accuracy": 0.95}])
    found = table(ledger, ACCURACY, {})
    assert best_trials(found) == (1,)
    write(ledger, found)
    first = next(csv.DictReader((ledger.path / "table.csv").read_text().splitlines()))
    expected = {"trial": "1", "lr": "'=1+1", "val/accuracy": "0.9", "test/accuracy": "0.8"}
    assert first.items() >= expected.items()


def test_best_setting_by_mean(tmp_path: Path) -> None:
    """Not that of the luckiest seed, nor one with a failed seed."""
    ledger = book(
        tmp_path / "sweep",
        *(f"seed={seed} lr={lr}" for lr in (1, 2, 3) for seed in (0, 1)),
        "seed=0 lr=4",
    )
    ledger.trials[5].folder.write_status(state="failed", host="elsewhere")
    for number, best in {0: 0.8, 1: 0.99, 2: 0.95, 3: 0.97, 4: 0.98, 6: 0.999}.items():
        finish(ledger.trials[number], best, test_accuracy=best - 0.1)
    found = table(ledger, ACCURACY, {})
    assert best_trials(found) == (2, 3)
    assert best_trials(table(ledger, Objective("val/accuracy", False), {})) == (0, 1)
    group = found.groups[1]
    assert group[5:9] == pytest.approx((0.895, np.std([0.8, 0.99], ddof=1), 0, 1))
    assert list(group.tests["test/accuracy"].values()) == pytest.approx(
        [2, 0.795, group.deviation, 0, 1]
    )


def test_seed_trained_twice(tmp_path: Path) -> None:
    ledger = book(
        tmp_path / "sweep",
        "lr=1",
        "lr=2",
        *(f"lr={lr} seed={seed}" for lr in (1, 2) for seed in (0, 1)),
    )
    finish_all(ledger, 0.8, 0.7, 0.8, 0.9, 0.7, 0.6)
    for trial in ledger.trials:
        trial.folder.config.write_text("seed: 0")  # the default of the first two
    found = table(ledger, ACCURACY, {})
    assert [line["seed"] for line in found.lines] == ["0", "0", "1", "0", "0", "1"]
    assert found.groups[0][1:9] == ((0, 2, 3), 3, "seeds", *spread_of(0.8, 0.9, are_folds=False))


@pytest.mark.parametrize(
    ("settings", "values", "losses", "expected"),
    [
        ("lr=1|lr=2|lr=3|lr=4", (0.9, 0.9, 0.9, 0.9), (0.3, 0.2, None, 0.2), (1,)),
        (
            "lr=1 seed=0|lr=1 seed=1|lr=2 seed=0|lr=2 seed=1",
            (0.75, 0.75, 0.5, 1.0),
            (1, 2, 1, 1),
            (2, 3),
        ),
        (
            "lr=1 seed=0|lr=1 seed=1|lr=2 seed=0|lr=2 seed=1",
            (0.75, 0.75, 0.5, 1.0),
            (None,) * 4,
            (0, 1),
        ),
    ],
    ids=["lower loss", "lower mean of losses", "first in the command"],
)
def test_best_setting_equal_values(
    tmp_path: Path,
    settings: str,
    values: Sequence[float],
    losses: Sequence[float | None],
    expected: tuple[int, ...],
) -> None:
    ledger = book(tmp_path / "sweep", *settings.split("|"))
    for trial, value, loss in zip(ledger.trials, values, losses, strict=True):
        finish(trial, value, loss=loss)
    assert best_trials(table(ledger, ACCURACY, {})) == expected


def test_folds_as_repetitions(tmp_path: Path) -> None:
    settings = [f"data.fold={fold} lr={lr} data.folds=3" for fold in range(3) for lr in (1, 2)]
    ledger = book(tmp_path / "sweep", *settings)
    finish_all(ledger, 0.7, 0.9, 0.8, 0.8, 0.99, 0.85)
    ledger.trials[5].folder.write_status(state="training", host="elsewhere")
    # lr=2 has not all of its folds
    assert best_trials(table(ledger, ACCURACY, {5: "training"})) == (0, 2, 4)
    for number, value, test in ((5, 0.85, 0.7), (3, 0.8, 0.8)):
        finish(ledger.trials[number], value, test_accuracy=test)
    best = table(ledger, ACCURACY, {}).best
    assert best is not None
    assert best.trials == (1, 3, 5)
    assert best.tests == {}  # two are tested
    assert best[5:9] == pytest.approx(spread_of(0.9, 0.8, 0.85, are_folds=True)[1:])
    finish(ledger.trials[1], 0.9, test_accuracy=0.75)
    (group, _) = table(ledger, ACCURACY, {}).groups
    assert group.tests["test/accuracy"] == spread_of(0.75, 0.8, 0.7, are_folds=True)._asdict()


def test_folds_averaged_over_seeds(tmp_path: Path) -> None:
    ledger = book(
        tmp_path / "sweep",
        *(f"data.fold={fold} seed={seed}" for fold in range(2) for seed in range(3)),
    )
    finish_all(ledger, 0.7, 0.8, 0.9, 0.5, 0.6, 0.7)
    (group,) = table(ledger, ACCURACY, {}).groups
    assert group[3:9] == pytest.approx(("folds", *spread_of(0.8, 0.6, are_folds=True)))


def test_join_folds(tmp_path: Path) -> None:
    """Once all folds of a setting are tested, and not where the images changed between them."""
    ledger = folds_of(tmp_path / "sweep", "lr=1", "lr=2")
    ledger.trials[3].folder.forget_end()
    found = table(ledger, ACCURACY, {})
    out_of_fold.join(ledger, found)
    joined = ledger.path / "out_of_fold_1.csv"
    assert joined.read_bytes() == b"file,truth,prediction\r\n1,a,old\r\n0,a,old\r\n"
    assert not (ledger.path / "out_of_fold_3.csv").exists()
    assert [tables.find_fold_file(trial.folder) for trial in ledger.trials] == [joined] * 2 + [
        None
    ] * 2
    joined.unlink()
    finish(ledger.trials[0], 0.9)  # trained on since its rows were written
    assert out_of_fold.join(ledger, table(ledger, ACCURACY, {})) == []
    write_images(ledger.trials[0], train="", test="a")
    (line,) = out_of_fold.join(ledger, found)
    assert "the images changed between the folds" in line
    assert not joined.exists()


def write_images(trial: Trial, train: str, test: str) -> None:
    """The record of the images of a trial, a letter each."""
    record = {
        split: {"names": list(names)}
        for split, names in (("train", train), ("val", ""), ("test", test))
    }
    trial.folder.images.write_bytes(gzip.compress(json.dumps(record).encode()))


def folds_of(path: Path, *settings: str) -> Ledger:
    """A sweep over two folds of some settings, which are all tested."""
    ledger = book(path, *(f"data.fold={fold} {each}" for each in settings for fold in (1, 0)))
    for trial in ledger.trials:
        fold = trial.settings["data.fold"]
        config_file.save(config_of("data.folds=2", f"data.fold={fold}"), trial.folder.config)
        write_images(trial, train="ab", test="c")
        finish_fold(trial, "old")
    return ledger


def finish_fold(trial: Trial, prediction: str, accuracy: float = 0.8) -> None:
    rows = f"file,truth,prediction\r\n{trial.number},a,{prediction}\r\n"
    trial.folder.fold_rows.write_text(rows, newline="")
    finish(trial, accuracy, test_accuracy=0.8)


def test_labels_best_setting(tmp_path: Path) -> None:
    ledger = folds_of(tmp_path / "sweep", "lr=1", "lr=2")
    for trial in ledger.trials[2:]:
        finish_fold(trial, "new", accuracy=0.9)
    assert out_of_fold.folds_of_best_setting(ledger.path) == [
        ledger.trials[number].folder for number in (3, 2)
    ]


def test_labels_resumed_fold(tmp_path: Path) -> None:
    ledger = folds_of(tmp_path / "sweep", "lr=1")
    ledger.trials[0].folder.forget_end()
    with pytest.raises(ValueError, match="has no predictions of all folds"):
        out_of_fold.folds_of_best_setting(ledger.path)
    finish_fold(ledger.trials[0], "new")
    assert out_of_fold.folds_of_best_setting(ledger.path) == [
        ledger.trials[number].folder for number in (1, 0)
    ]


@pytest.mark.parametrize(("is_running", "expected"), [(False, "new"), (True, "old")])
def test_fold_resumed_alone_joined_again(tmp_path: Path, is_running: bool, expected: str) -> None:
    ledger = folds_of(tmp_path / "sweep", "lr=1")
    out_of_fold.join(ledger, table(ledger, ACCURACY, {}))
    finish_fold(ledger.trials[0], "new")
    with RunFolder(ledger.path).lock() if is_running else contextlib.nullcontext():
        out_of_fold.refresh(ledger.trials[0].folder, is_silent=False)
    rows = list(csv.DictReader((ledger.path / "out_of_fold.csv").read_text().splitlines()))
    assert [row["prediction"] for row in rows] == ["old", expected]


def test_search_over_folds_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.fold in a search would choose the easiest fold"):
        separate_space(["optimizer.lr=interval(0.1,1)", "data.fold=0,1"], {})


def test_objective_best_epoch(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    epochs = ((1, 0.5, 3), (2, 0.8, 2), (3, 0.6, 1))
    files.write_rows(
        folder.metrics, [{"epoch": n, "val/accuracy": v, "val/loss": w} for n, v, w in epochs]
    )
    assert (ACCURACY.value_in(folder), Objective("val/loss", False).value_in(folder)) == (0.8, 1)
    folder.write_summary({"best": 0.81, "monitor": "val/accuracy"})
    assert ACCURACY.value_in(folder) == 0.81


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ACCURACY),
        (
            ("callbacks.checkpoint.monitor=val/loss", "callbacks.checkpoint.mode=min"),
            Objective("val/loss", False),
        ),
        (("callbacks.checkpoint=null",), ACCURACY),
    ],
)
def test_monitored_objective(overrides: Sequence[str], expected: Objective) -> None:
    assert monitored_objective(config_of(*overrides)) == expected


# -- jobs of a search, with a scheduler that answers from a dictionary -----------------------------


class Cluster:
    """A SLURM whose states a test sets, by id."""

    def __init__(self) -> None:
        self.states: dict[str, Scheduled] = {}
        self.cancelled: list[Sequence[str]] = []
        self.copies: list[Path | None] = []

    def answer(self, ids: Sequence[str]) -> dict[str, Scheduled]:
        return {job: self.states[job] for job in ids if job in self.states}

    def submit(
        self,
        runs: Sequence[tuple[RunFolder, Config]],
        work: submission.Work,
        *,
        old_code: Path | None,
        **options: Any,
    ) -> list[JobRecord]:
        (((folder, _),), job) = runs, str(10 + len(self.states))
        self.copies.append(old_code)
        known = {"id": job, "engine": "slurm", "task": work.task}
        record = JobRecord(**job_records.fields(**known, code=str(old_code or "copy")))
        folder.write_status(state="not started", reason="submitted", exit_code=None)
        record.save(folder)
        self.states[job] = Scheduled("pending")
        return [record]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(scheduler, "states", made.answer)
    monkeypatch.setattr(scheduler, "call", lambda _, *ids: made.cancelled.append([*ids]))
    monkeypatch.setattr(submission, "submit_all", made.submit)
    monkeypatch.setattr(job_pool, "LOOK_EVERY_S", 0.0)
    return made


def pool_of(ledger: Ledger) -> JobPool:
    configs = dict.fromkeys(range(len(ledger.trials)), config_of())
    return JobPool(ledger, configs, array.live_jobs(ledger))


@pytest.mark.parametrize(
    ("job", "run", "code", "state"),
    [
        (Scheduled("completed"), {"state": "finished", "exit_code": 0}, 0, "finished"),
        (
            Scheduled("failed", exit_code=75),
            {"state": "stopped", "exit_code": 75},
            EXIT_STOPPED,
            "stopped",
        ),
        (
            Scheduled("failed", exit_code=75),
            {"state": "pruned", "exit_code": 75},
            EXIT_STOPPED,
            "pruned",
        ),
        (
            Scheduled("failed", exit_code=1),
            {"state": "failed", "exit_code": 1},
            EXIT_FAILED,
            "failed",
        ),
        # without a report of the run: killed, cancelled before its checkpoint or its start
        (Scheduled("failed", exit_code=137), {"state": "training"}, 137, "failed"),
        (Scheduled("out_of_memory"), {"state": "not started"}, EXIT_FAILED, "failed"),
        (Scheduled("cancelled", exit_code=143), {"state": "training"}, EXIT_STOPPED, "stopped"),
        (Scheduled("cancelled"), {"state": "not started"}, EXIT_STOPPED, "stopped"),
    ],
)
def test_requeued_and_ended_jobs(
    cluster: Cluster, tmp_path: Path, job: Scheduled, run: dict[str, Any], code: int, state: str
) -> None:
    """A requeued trial runs, and an ended one has the state of its run or of its job."""
    ledger = book(tmp_path / "sweep", "seed=0")
    (trial,), pool = ledger.trials, pool_of(ledger)
    assert pool.start(trial, "train")
    assert trial.device == "job 10"
    for live in ("pending", "running", "completing", "requeued", "pending", "running"):
        cluster.states["10"] = Scheduled(live)
        assert (pool.collect_ended(), pool.trials) == ([], [trial])
    cluster.states["10"] = job
    trial.folder.update_status(host="elsewhere", **run)
    assert (pool.collect_ended(), pool.trials, trial.state) == ([(trial, code)], [], state)
    assert trial.folder.failure.exists() == (
        code == 137 or (run["state"] == "not started" and code == EXIT_FAILED)
    )


def test_live_jobs_adopted(cluster: Cluster, tmp_path: Path) -> None:
    """Jobs of an earlier command are adopted, and new ones share one copy of the code."""
    ledger = book(tmp_path / "sweep", "seed=0", "seed=1", "seed=2", "seed=3")
    killed = pool_of(ledger)
    for trial in ledger.trials[:2]:
        killed.start(trial, "train")
    cluster.states["10"] = Scheduled("failed", exit_code=1)
    again = pool_of(Ledger.open(ledger.path))
    for trial in ledger.trials:
        again.start(trial, "train")
    assert [trial.device for trial in ledger.trials] == ["job 12", "job 11", "job 13", "job 14"]
    assert cluster.copies == [None, Path("copy"), None, Path("copy"), Path("copy")]


@pytest.mark.usefixtures("cluster")
def test_collect_unresponsive_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search waits for a SLURM that does not answer."""
    ledger = book(tmp_path / "sweep", "seed=0")
    pool = pool_of(ledger)
    pool.start(ledger.trials[0], "train")
    monkeypatch.setattr(scheduler, "states", Mock(side_effect=ValueError("no response")))
    assert (pool.collect_ended(), pool.trials) == ([], ledger.trials)


def test_stop_cancels_pending_trials(cluster: Cluster, tmp_path: Path) -> None:
    ledger = book(tmp_path / "sweep", "seed=0", "seed=1", "seed=2", "seed=3")
    pool = pool_of(ledger)
    jobs = ("running", "running", "pending", "pending")
    # the last one waits again, after a node failed
    runs = ("training", "not started", "not started", "training")
    for trial, job, run in zip(ledger.trials, jobs, runs, strict=True):
        pool.start(trial, "train")
        cluster.states[trial.device.removeprefix("job ")] = Scheduled(job)
        trial.folder.update_status(state=run, host="elsewhere")
    pool.stop()
    assert (pool.collect_ended(), pool.collect_ended()) == ([], [])
    assert cluster.cancelled == [["11", "12", "13"]]
    reasons = [trial.folder.stop_reason() for trial in ledger.trials]
    assert reasons == ["the search was stopped", "", "", ""]
    assert [trial.folder.read_job()["cancelled"] for trial in ledger.trials] == [
        False,
        True,
        True,
        True,
    ]


class Search(Grid):
    """Finds trial 0 poor, and gets a signal when it is asked about trial 1."""

    def __init__(self, trials: Sequence[Trial], number: int = 0) -> None:
        super().__init__(trials)
        self.number = number
        self.ends: list[tuple[int, str]] = []

    def should_prune(self, trial: Trial) -> bool:
        if trial.number:
            signal.raise_signal(self.number)
        return not trial.number and not trial.folder.stop_flag.exists()

    def record_result(self, trial: Trial, state: str) -> None:
        self.ends.append((trial.number, state))


# a hangup is ignored under nohup
@pytest.mark.parametrize(
    "number", sorted({signal.SIGINT, signal.SIGTERM, signal.SIGHUP}.intersection(STOP_SIGNALS))
)
def test_signal_leaves_jobs(cluster: Cluster, tmp_path: Path, number: int) -> None:
    """A signal ends the command and no job; a pruned trial is found ended by the next command."""
    ledger = book(tmp_path / "sweep", "seed=0", "seed=1")
    pruned, failed = ledger.trials
    pool = pool_of(ledger)
    view = View(partial(table, ledger, ACCURACY), 2, is_silent=True)
    assert (
        SweepLoop(ledger, Search(ledger.trials, number), pool, view, 2, "train").run()
        == EXIT_STOPPED
    )
    assert (pruned.folder.stop_reason(), failed.folder.stop_reason()) == (PRUNED, "")
    assert (cluster.cancelled, pool.trials) == ([], ledger.trials)
    pruned.folder.update_status(state="pruned", host="elsewhere", exit_code=EXIT_STOPPED)
    failed.folder.update_status(state="failed", host="elsewhere", exit_code=EXIT_FAILED)
    cluster.states = dict.fromkeys(cluster.states, Scheduled("failed"))
    source = Search([])
    assert SweepLoop(ledger, source, pool, view, 2, "train").run() == EXIT_FAILED
    assert sorted(source.ends) == [(0, "pruned"), (1, "failed")]
