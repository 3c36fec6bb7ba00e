"""Searches by Optuna, with trainings that are replaced by a function, and with real ones."""

import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from lockstep.config import build
from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.composing.compose import CONF, groups
from lockstep.config.composing.sweep_space import Interval, separate_space
from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.target_sections import Search
from lockstep.runs import files
from lockstep.sweeps.ledger import Ledger, Trial
from lockstep.sweeps.results import Objective
from lockstep.sweeps.search import MOST_REPEATS, Draws, distributions, study_in
from tests.support.callbacks import SEES
from tests.support.harness import PATIENCE_S, SMALL, wait_until
from tests.support.sweeps import processes_of, run, started, table_of, tree_of, trials_of

ACCURACY = Objective("val/accuracy", True)
OPTIONS = groups(CONF).__getitem__


def search_of(*overrides: str) -> Search:
    found = validation.check_config(compose.compose_config(["search=random", *overrides])).search
    assert found is not None
    return found


class Fake:
    """A sweep whose trainings end at once, with the value that `result` gives for what was drawn."""

    def __init__(
        self, path: Path, search: Search, space: str, result: Callable[[dict[str, str]], float | None]
    ) -> None:
        path.mkdir(exist_ok=True)
        self.ledger = Ledger.open(path, None, ())
        self.search = search
        self.result = result
        _, self.space = separate_space([space], OPTIONS)
        self.study = study_in(self.ledger, distributions(self.space), search, ACCURACY)
        self.draws = self.begin()

    def begin(self) -> Draws:
        return Draws(
            self.study,
            distributions(self.space),
            self.ledger,
            self.make,
            objective=ACCURACY,
            num_trials=self.search.num_trials,
        )

    def make(self, drawn: Sequence[str]) -> Trial:
        if any(text.endswith("=bad") for text in drawn):
            raise ConfigError(Error("bad", "cannot be trained"))
        trial = self.ledger.find(drawn) or self.ledger.add(drawn, str(self.ledger.next_number))
        trial.folder.path.mkdir(exist_ok=True)
        self.ledger.write()
        return trial

    def end(self, trial: Trial) -> None:
        best = self.result(trial.settings)
        if best is not None:
            trial.folder.write_summary({"best": best})
        status = {"state": "finished" if best is not None else "failed", "monitor": "val/accuracy", "host": "elsewhere"}
        trial.folder.write_status(**status)
        self.draws.record_result(trial, status["state"])

    def run(self, most: int = 10**6, at_once: int = 2) -> list[Trial]:
        """Run until nothing is proposed any more; at most so many. Returns the trials that ran."""
        done: list[Trial] = []
        while len(done) < most:
            running = list(self.draws.propose(at_once))
            if not running:
                break
            for trial in running[: most - len(done)]:
                self.end(trial)
                done.append(trial)
        return done


def rate(settings: dict[str, str]) -> float:
    return -((float(settings["optimizer.lr"]) - 0.3) ** 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer.lr=interval(0.1,1)", Interval(0.1, 1.0, None, False)),
        ("optimizer.lr=tag(log,interval(0.1,1))", Interval(0.1, 1.0, None, True)),
        ("model.width=range(8,33,8)", Interval(8, 32, 8, False)),
        ("model.width=range(32,7,-8)", Interval(8, 32, 8, False)),
        ("optimizer=sgd,adamw", ("sgd", "adamw")),
        ("optimizer=glob(*w)", ("adamw",)),
        ("trainer.loads=[1,2],[3,4]", ("[1,2]", "[3,4]")),
    ],
)
def test_hydras_sweeps_are_what_is_drawn_from(text: str, expected: object) -> None:
    fixed, space = separate_space(["seed=3", text], OPTIONS)
    assert fixed == ["seed=3"]
    assert list(space.values()) == [expected]
    if text.startswith("model.width"):
        assert distributions(space) == {"model.width": optuna.distributions.IntDistribution(8, 32, step=8)}
    kinds = {type(value) for value in distributions(space).values()}
    assert kinds <= {
        optuna.distributions.FloatDistribution,
        optuna.distributions.IntDistribution,
        optuna.distributions.CategoricalDistribution,
    }


def test_a_study_finds_the_best_rate_and_stops_at_its_number(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "s", search_of("search=tpe", "search.num_trials=30"), "optimizer.lr=interval(0.01,1)", rate)
    assert len(fake.run()) == 30
    assert abs(fake.study.best_params["optimizer.lr"] - 0.3) < 0.05  # 30 draws of TPE with seed 0 on a parabola
    assert fake.study.best_value == pytest.approx(rate({"optimizer.lr": str(fake.study.best_params["optimizer.lr"])}))
    assert fake.draws.propose(2) == []


def test_a_sampler_made_for_several_objectives_takes_one(tmp_path: Path) -> None:
    sampler = ["search.sampler._target_=optuna.samplers.NSGAIISampler", "+search.sampler.population_size=3"]
    fake = Fake(tmp_path / "s", search_of("search.num_trials=9", *sampler), "optimizer.lr=interval(0.01,1)", rate)
    assert len(fake.run()) == 9
    assert isinstance(fake.study.sampler, optuna.samplers.NSGAIISampler)
    assert fake.study.best_value == max(rate(trial.settings) for trial in fake.ledger.trials)


def test_a_study_goes_on_with_other_draws_and_with_what_was_interrupted(tmp_path: Path) -> None:
    space, search = "optimizer.lr=interval(0.01,1)", search_of("search.num_trials=8")
    first = Fake(tmp_path / "s", search, space, rate)
    first.run(most=3, at_once=1)
    (open_one,) = first.draws.propose(1)
    del first
    second = Fake(tmp_path / "s", search, space, rate)
    resumed = second.draws.propose(1)
    assert [trial.number for trial in resumed] == [open_one.number]
    second.end(resumed[0])
    assert len(second.run()) == 8 - 3 - 1
    drawn = [trial.settings["optimizer.lr"] for trial in second.ledger.trials]
    assert len(set(drawn)) == len(drawn)
    longer = Fake(tmp_path / "s", search_of("search.num_trials=10"), space, rate)
    assert len(longer.run()) == 2


@pytest.mark.parametrize("kept", ["all and half a line", "half", "nothing"])
def test_a_study_whose_file_is_cut_off_learns_from_the_ledger_what_was_trained(tmp_path: Path, kept: str) -> None:
    seed = f"search.sampler.seed={'null' if kept == 'nothing' else 0}"  # with a seed the same is drawn again
    space, search = "optimizer.lr=tag(log,interval(0.01,1))", search_of("search.num_trials=30", seed)
    first = Fake(tmp_path / "s", search, space, rate)
    first.run(most=25, at_once=1)
    (open_one,) = first.draws.propose(1)
    file = tmp_path / "s" / "study.journal"
    text = file.read_text()
    file.write_text({"all and half a line": text + text[:20], "half": text[: len(text) // 2], "nothing": ""}[kept])
    for expected in ([open_one.number, 26, 27, 28, 29], []):  # the same command again has nothing left
        again = Fake(tmp_path / "s", search, space, rate)
        assert [trial.number for trial in again.run(at_once=1)] == expected
        assert {trial.state for trial in again.ledger.trials} == {"finished"}
        values = [trial.value for trial in again.study.trials if trial.user_attrs.get("trial") is not None]
        assert values == pytest.approx([rate(trial.settings) for trial in again.ledger.trials])


@pytest.mark.parametrize("line", ['{"op_code"', "{}"])
def test_a_study_whose_file_has_a_broken_line_continues_without_that_file(tmp_path: Path, line: str) -> None:
    space, search = "optimizer.lr=interval(0.01,1)", search_of("search.num_trials=4", "search.sampler.seed=null")
    Fake(tmp_path / "s", search, space, rate).run(most=3, at_once=1)
    file = tmp_path / "s" / "study.journal"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], line, *lines[4:], ""]))
    with pytest.raises(ConfigError, match=r"s/study\.journal cannot be read: remove it, and the same command adds"):
        Fake(tmp_path / "s", search, space, rate)
    file.unlink()
    again = Fake(tmp_path / "s", search, space, rate)
    assert [trial.number for trial in again.run(at_once=1)] == [3]
    values = [trial.value for trial in again.study.trials]
    assert values == pytest.approx([rate(trial.settings) for trial in again.ledger.trials])


def test_what_failed_is_tried_again_before_anything_is_drawn_so_there_is_no_trial_too_many(tmp_path: Path) -> None:
    space, search = "optimizer.lr=interval(0.01,1)", search_of("search.num_trials=6")
    first = Fake(tmp_path / "s", search, space, lambda drawn: None)
    failed = first.run(most=2, at_once=1)
    again = Fake(tmp_path / "s", search, space, rate)
    assert [trial.number for trial in again.run(at_once=1)] == [0, 1, 2, 3, 4, 5]
    assert [trial.overrides for trial in again.ledger.trials[:2]] == [trial.overrides for trial in failed]
    told = [(trial.user_attrs["trial"], trial.state.name) for trial in again.study.trials]
    assert told == [(0, "FAIL"), (1, "FAIL"), *((number, "COMPLETE") for number in range(6))]
    assert Fake(tmp_path / "s", search, space, rate).run() == []


def seed_of(drawn: dict[str, str]) -> float:
    return float(drawn["seed"])


@pytest.mark.parametrize(
    ("at_once", "space"), [(1, "seed=1,2,3,4,5"), (4, "seed=range(1,6)"), (4, "seed=interval(1,5)")]
)
def test_a_draw_that_comes_again_is_neither_trained_nor_counted_again(tmp_path: Path, at_once: int, space: str) -> None:
    fake = Fake(tmp_path / "s", search_of("search.num_trials=4"), space, seed_of)
    assert len({trial.settings["seed"] for trial in fake.run(at_once=at_once)}) == 4
    assert fake.draws.note == ""
    more = Fake(tmp_path / "s", search_of("search.num_trials=5"), space, seed_of)
    assert len(more.run(at_once=at_once)) == 1
    # the same draw has the same result
    values = {trial.params["seed"]: trial.value for trial in more.study.trials}
    assert all(value == float(seed) for seed, value in values.items())
    assert {trial.state for trial in more.study.trials} == {optuna.trial.TrialState.COMPLETE}


@pytest.mark.parametrize(("space", "num_points"), [("seed=1,2,3", 3), ("optimizer.lr=range(0.25,1.1,0.25)", 4)])
def test_a_search_over_fewer_points_than_trials_ends_with_a_note(tmp_path: Path, space: str, num_points: int) -> None:
    for num_trained in (num_points, 0):  # the same command again has nothing left
        fake = Fake(tmp_path / "s", search_of("search.num_trials=12"), space, lambda drawn: 0.5)
        assert len(fake.run(at_once=2)) == num_trained
        expected = f"RandomSampler drew only known points {MOST_REPEATS} times in a row: {num_points} of 12 points done"
        assert expected in fake.draws.note
    assert len(fake.study.trials) < num_points + 5 * MOST_REPEATS


def test_what_fails_or_cannot_be_trained_is_counted_once_and_drawn_anew_by_the_next_command(tmp_path: Path) -> None:
    search, space = search_of("search.num_trials=12"), "name=good,bad,fails"
    num_done = 0

    def result(drawn: dict[str, str]) -> float | None:
        return None if drawn["name"] == "fails" else 0.5

    for names in (["fails", "good"], ["fails"]):
        fake = Fake(tmp_path / "s", search, space, result)
        assert sorted(trial.settings["name"] for trial in fake.run()) == names
        assert "1 of 12 points done" in fake.draws.note
        drawn = fake.study.trials[num_done:]
        assert {trial.params["name"] for trial in drawn if trial.state.name == "FAIL"} == {"bad", "fails"}
        num_done = len(fake.study.trials)


def test_a_trial_that_is_poorer_than_the_median_is_pruned_after_the_warm_up(tmp_path: Path) -> None:
    overrides = ["search.pruner.n_startup_trials=1", "search.pruner.n_warmup_steps=1", "search.num_trials=9"]
    fake = Fake(tmp_path / "s", search_of(*overrides), "optimizer.lr=interval(0.01,1)", rate)

    def row(epoch: int, value: float) -> dict[str, Any]:
        return {"epoch": epoch, "val/accuracy": value}

    good, poor = fake.draws.propose(2)
    files.write_rows(good.folder.metrics, [row(1, 0.8), row(2, 0.9)])
    assert not fake.draws.is_poor(good)
    fake.end(good)
    files.write_rows(poor.folder.metrics, [row(1, 0.1)])
    assert not fake.draws.is_poor(poor)  # warm-up
    files.write_rows(poor.folder.metrics, [row(1, 0.1), row(2, 0.2)])
    assert fake.draws.is_poor(poor)
    fake.draws.record_result(poor, "pruned")
    frozen = fake.study.trials[1]
    assert (frozen.state.name, frozen.intermediate_values) == ("PRUNED", {0: 0.1, 1: 0.2})


def test_equal_draws_wait_for_the_result_of_their_point(tmp_path: Path) -> None:
    space, search = "optimizer=sgd,adamw", search_of("search.num_trials=3")
    values = {"sgd": 6.0, "adamw": 1.0}
    fake = Fake(tmp_path / "s", search, space, lambda drawn: values[drawn["optimizer"]])
    assert len(fake.draws.propose(9)) == 2
    assert len(fake.study.trials) == 2 + MOST_REPEATS
    for trial in fake.ledger.trials:
        assert {trial.state.name for trial in fake.study.trials} >= {"RUNNING"}
        fake.end(trial)
    assert [trial.value for trial in fake.study.trials] == [values[t.params["optimizer"]] for t in fake.study.trials]


def test_a_stopped_trial_leaves_its_point_open_for_the_next_command(tmp_path: Path) -> None:
    space, search = "optimizer.lr=interval(0.01,1)", search_of("search.num_trials=1")
    first = Fake(tmp_path / "s", search, space, rate)
    (stopped,) = first.draws.propose(3)
    first.draws.record_result(stopped, "stopped")
    assert [trial.state.name for trial in first.study.trials] == ["RUNNING"]
    again = Fake(tmp_path / "s", search, space, rate)
    assert [trial.number for trial in again.run()] == [0]
    assert again.study.trials[0].value == pytest.approx(rate(stopped.settings))


def test_a_study_of_several_seeds_of_a_point_is_refused(tmp_path: Path) -> None:
    space, search = "optimizer.lr=interval(0.01,1)", search_of("search.num_trials=2")
    fake = Fake(tmp_path / "s", search, space, rate)
    for seed in (0, 1):
        fake.ledger.add(["optimizer.lr=0.1", f"seed={seed}"], str(seed))
    fake.ledger.write()
    with pytest.raises(ConfigError, match=r"has several seeds of a point.*: choose another sweep\.name"):
        Fake(tmp_path / "s", search, space, rate)


def test_a_draw_that_was_killed_before_it_had_its_values_is_drawn_again(tmp_path: Path) -> None:
    space, search = "optimizer.lr=interval(0.01,1)", search_of("search.num_trials=2")
    Fake(tmp_path / "s", search, space, rate).run(most=1)
    (tmp_path / "s" / "study.journal").unlink()
    Fake(tmp_path / "s", search, space, rate).study.ask()  # the first of the two that are drawn again
    again = Fake(tmp_path / "s", search, space, rate)
    assert [trial.number for trial in again.run()] == [1]
    assert [trial.state.name for trial in again.study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]


def test_points_are_told_apart_by_a_setting_that_is_hidden_like_a_secret(tmp_path: Path) -> None:
    space, search = "model.token=first,second", search_of("search.num_trials=2")
    Fake(tmp_path / "s", search, space, lambda drawn: 0.5).run(most=1)
    again = Fake(tmp_path / "s", search, space, lambda drawn: 0.5)
    assert [trial.number for trial in again.run()] == [1]
    assert {trial.state.name for trial in again.study.trials} == {"COMPLETE"}


def test_a_study_is_not_turned_around_under_its_name(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path, None, ())
    study_in(ledger, {}, search_of(), ACCURACY)
    with pytest.raises(ConfigError, match="optimizes something else"):
        study_in(ledger, {}, search_of(), Objective("val/loss", False))


def test_a_study_of_several_objectives_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    optuna.create_study(storage=journal(tmp_path), study_name="study", directions=["maximize", "minimize"])
    with pytest.raises(ConfigError, match=r"optimizes something else: choose another sweep\.name"):
        study_in(Ledger.open(tmp_path, None, ()), {}, search_of(), ACCURACY)


def test_every_search_of_conf_names_a_sampler_there_is() -> None:
    for option in groups(CONF)["search"]:
        found = validation.check_config(compose.compose_config([f"search={option}"])).search
        assert found is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            assert isinstance(build.build(found.sampler), optuna.samplers.BaseSampler)


@pytest.mark.full
@pytest.mark.processes
def test_a_search_is_stopped_and_goes_on_and_a_pruned_trial_of_two_workers_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    overrides = [*SMALL, "model.width=2", "data.train_size=40", "trainer.max_epochs=8", "trainer.devices=2"]
    overrides += ["search=random", "search.num_trials=2", "sweep.name=study", "launcher.parallel=1", SEES % "2"]
    overrides += ["optimizer.lr=tag(log,interval(0.001,0.1))"]
    # an accuracy below 1.1 is always poor
    pruner = ["search.pruner._target_=optuna.pruners.ThresholdPruner", "+search.pruner.lower=1.1"]
    pruner += ["~search.pruner.n_startup_trials", "search.pruner.n_warmup_steps=2"]
    with started(tmp_path, *overrides, *pruner) as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/metrics.csv")), "the second trial")
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 75, out
    assert "Trial 0 pruned" in out
    first, second = trials_of(tmp_path)
    status = first.read_status()
    assert (status["state"], status["workers"]) == ("pruned", 2)
    assert "other trials were better at this point" in status["reason"]
    listed = subprocess.run(
        [sys.executable, "-m", "lockstep.cli.main", "runs"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert sorted(row.split()[0] for row in listed.stdout.splitlines()[1:]) == ["pruned", "stopped"]
    assert (first.stop_flag.exists(), first.is_locked()) == (False, False)
    assert processes_of(first) == []
    assert len(first.read_metrics()) < 8
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    (tmp_path / "fast").touch()
    done = run(tmp_path, *overrides, "search.pruner=null")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == before
    assert len(second.read_metrics()) == 8
    table = table_of(tmp_path)
    assert [trial["state"] for trial in table["trials"]] == ["finished", "pruned"]
    study = optuna.load_study(study_name="study", storage=journal(tree_of(tmp_path)))
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]
    assert table["best_trials"] == [study.best_trial.user_attrs["trial"]] == [1]
    assert study.best_value == pytest.approx(table["trials"][0]["val/accuracy"])


def journal(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path / "study.journal")))
