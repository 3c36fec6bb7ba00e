"""Searches by Optuna, with trainings that are replaced by a function, and with real ones."""

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from lockstep.config.checks import validation
from lockstep.config.composing import compose
from lockstep.config.composing.compose import CONF, groups
from lockstep.config.composing.sweep_space import Interval, separate_space
from lockstep.config.errors import ConfigError, Error
from lockstep.config.schema.target_sections import Search
from lockstep.runs import files
from lockstep.sweeps.search import JOURNAL, MAX_REPEATS, Draws, distributions, study_in
from lockstep.trials.ledger import Ledger, Trial
from lockstep.trials.results import Objective
from tests.support.callbacks import SEES
from tests.support.harness import PATIENCE_S, SMALL, wait_until
from tests.support.sweeps import (
    journal,
    processes_of,
    run,
    started,
    table_of,
    tree_of,
    trials_of,
)

ACCURACY = Objective("val/accuracy", True)
OPTIONS = groups(CONF)


def search_of(*overrides: str) -> Search:
    found = validation.check_config(compose.compose_config(["search=random", *overrides])).search
    assert found is not None
    return found


SPACE = "optimizer.lr=interval(0.01,1)"


def rate(settings: dict[str, str]) -> float:
    return -((float(settings["optimizer.lr"]) - 0.3) ** 2)


class Fake:
    """A sweep whose trainings end at once.

    Their value is what `result` gives for the drawn settings.
    """

    def __init__(
        self,
        path: Path,
        search: Search,
        space: str = SPACE,
        result: Callable[[dict[str, str]], float | None] = rate,
    ) -> None:
        path.mkdir(exist_ok=True)
        self.ledger = Ledger.open(path)
        self.result = result
        _, parameters = separate_space([space], OPTIONS)
        drawn = distributions(parameters)
        self.study = study_in(self.ledger, drawn, search, ACCURACY)
        self.draws = Draws(
            self.study,
            drawn,
            self.ledger,
            self.make,
            objective=ACCURACY,
            num_trials=search.num_trials,
        )

    @property
    def states(self) -> list[str]:
        """Those of the trials in the study."""
        return [trial.state.name for trial in self.study.trials]

    def make(self, drawn: Sequence[str]) -> Trial:
        if any(text.endswith("=bad") for text in drawn):
            raise ConfigError(Error("failed", "bad", "cannot be trained"))
        trial = self.ledger.find(drawn) or self.ledger.add(drawn, str(self.ledger.next_number))
        trial.folder.path.mkdir(exist_ok=True)
        self.ledger.write()
        return trial

    def end(self, trial: Trial) -> None:
        best = self.result(trial.settings)
        if best is not None:
            trial.folder.write_summary({"best": best})
        status = {
            "state": "finished" if best is not None else "failed",
            "monitor": "val/accuracy",
            "host": "elsewhere",
        }
        trial.folder.write_status(**status)
        self.draws.record_result(trial, status["state"])

    def run(self, most: int = 10**6, at_once: int = 1) -> list[int]:
        """Run until nothing is proposed, or at most so many trials.

        Returns the numbers of the trials that ran.
        """
        done: list[int] = []
        while len(done) < most:
            running = list(self.draws.propose(at_once))
            if not running:
                break
            for trial in running[: most - len(done)]:
                self.end(trial)
                done.append(trial.number)
        return done


@pytest.mark.parametrize(
    ("text", "expected", "distribution"),
    [
        (
            "optimizer.lr=interval(0.1,1)",
            Interval(0.1, 1.0, None, False),
            FloatDistribution(0.1, 1.0),
        ),
        (
            "optimizer.lr=tag(log,interval(0.1,1))",
            Interval(0.1, 1.0, None, True),
            FloatDistribution(0.1, 1.0, log=True),
        ),
        ("model.width=range(8,33,8)", Interval(8, 32, 8, False), IntDistribution(8, 32, step=8)),
        ("model.width=range(32,7,-8)", Interval(8, 32, 8, False), IntDistribution(8, 32, step=8)),
        ("optimizer=sgd,adamw", ("sgd", "adamw"), CategoricalDistribution(("sgd", "adamw"))),
        ("optimizer=glob(*w)", ("adamw",), CategoricalDistribution(("adamw",))),
        (
            "trainer.worker_weights=[1,2],[3,4]",
            ("[1,2]", "[3,4]"),
            CategoricalDistribution(("[1,2]", "[3,4]")),
        ),
    ],
)
def test_search_space(text: str, expected: object, distribution: BaseDistribution) -> None:
    fixed, space = separate_space(["seed=3", text], OPTIONS)
    assert fixed == ["seed=3"]
    assert list(space.values()) == [expected]
    assert list(distributions(space).values()) == [distribution]


def test_study_resumed(tmp_path: Path) -> None:
    """The trial that was interrupted comes first, and draws are others."""
    first = Fake(tmp_path / "s", search_of("search.num_trials=8"))
    first.run(most=3)
    first.draws.propose(1)
    second = Fake(tmp_path / "s", search_of("search.num_trials=8"))
    assert second.run() == [3, 4, 5, 6, 7]
    assert len({trial.settings["optimizer.lr"] for trial in second.ledger.trials}) == 8
    assert Fake(tmp_path / "s", search_of("search.num_trials=10")).run() == [8, 9]


@pytest.mark.full
@pytest.mark.parametrize("kept", ["all and half a line", "half", "nothing"])
def test_study_truncated_journal(tmp_path: Path, kept: str) -> None:
    """The study learns from the ledger what was trained."""
    # with a seed the same is drawn again
    seed = f"search.sampler.seed={'null' if kept == 'nothing' else 0}"
    space, search = (
        "optimizer.lr=tag(log,interval(0.01,1))",
        search_of("search.num_trials=30", seed),
    )
    first = Fake(tmp_path / "s", search, space)
    first.run(most=25)
    first.draws.propose(1)
    file = tmp_path / "s" / JOURNAL
    text = file.read_text()
    file.write_text(
        {"all and half a line": text + text[:20], "half": text[: len(text) // 2], "nothing": ""}[
            kept
        ]
    )
    for expected in ([25, 26, 27, 28, 29], []):  # the same command again has nothing left
        again = Fake(tmp_path / "s", search, space)
        assert again.run() == expected
        assert {trial.state for trial in again.ledger.trials} == {"finished"}
        values = [
            trial.value for trial in again.study.trials if trial.user_attrs.get("trial") is not None
        ]
        assert values == pytest.approx([rate(trial.settings) for trial in again.ledger.trials])


def test_study_failed_trials_first(tmp_path: Path) -> None:
    """What failed is tried again before anything is drawn, so that there is no trial too many."""
    search = search_of("search.num_trials=6")
    Fake(tmp_path / "s", search, result=lambda drawn: None).run(most=2)
    again = Fake(tmp_path / "s", search)
    assert again.run() == [0, 1, 2, 3, 4, 5]
    assert again.states == ["FAIL"] * 2 + ["COMPLETE"] * 6
    assert Fake(tmp_path / "s", search).run() == []


@pytest.mark.parametrize(
    ("at_once", "space"), [(1, "seed=1,2,3,4,5"), (4, "seed=range(1,6)"), (4, "seed=interval(1,5)")]
)
def test_study_repeated_draw(tmp_path: Path, at_once: int, space: str) -> None:
    """It is neither trained nor counted again, and has the same result."""
    for num_trials, num_trained in ((4, 4), (5, 1)):
        search = search_of(f"search.num_trials={num_trials}")
        fake = Fake(tmp_path / "s", search, space, lambda drawn: float(drawn["seed"]))
        assert len(fake.run(at_once=at_once)) == num_trained
    assert all(trial.value == float(trial.params["seed"]) for trial in fake.study.trials)
    assert set(fake.states) == {"COMPLETE"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("space", "num_points"), [("seed=1,2,3", 3), ("optimizer.lr=range(0.25,1.1,0.25)", 4)]
)
def test_study_of_few_points(tmp_path: Path, space: str, num_points: int) -> None:
    for num_trained in (num_points, 0):  # the same command again has nothing left
        fake = Fake(tmp_path / "s", search_of("search.num_trials=12"), space, lambda drawn: 0.5)
        assert len(fake.run(at_once=2)) == num_trained
        assert f"{num_points} of 12 points done" in fake.draws.note
    assert len(fake.study.trials) < num_points + 5 * MAX_REPEATS


def test_study_failing_points(tmp_path: Path) -> None:
    """Each is drawn once: what cannot be trained, and what fails."""
    results = {"fails": None, "good": 0.5}
    search = search_of("search.num_trials=12")
    fake = Fake(tmp_path / "s", search, "name=good,bad,fails", lambda drawn: results[drawn["name"]])
    assert len(fake.run(at_once=2)) == 2
    assert {trial.params["name"] for trial in fake.study.trials if trial.state.name == "FAIL"} == {
        "bad",
        "fails",
    }


def test_pruning_after_warm_up(tmp_path: Path) -> None:
    overrides = [
        "search.pruner.n_startup_trials=1",
        "search.pruner.n_warmup_steps=1",
        "search.num_trials=9",
    ]
    fake = Fake(tmp_path / "s", search_of(*overrides))

    def is_poor(trial: Trial, *values: float) -> bool:
        rows = [{"epoch": epoch, "val/accuracy": value} for epoch, value in enumerate(values, 1)]
        files.write_rows(trial.folder.metrics, rows)
        return fake.draws.should_prune(trial)

    good, poor = fake.draws.propose(2)
    assert not is_poor(good, 0.8, 0.9)
    fake.end(good)
    assert not is_poor(poor, 0.1)  # warm-up
    assert is_poor(poor, 0.1, 0.2)
    fake.draws.record_result(poor, "pruned")
    frozen = fake.study.trials[1]
    assert (frozen.state.name, frozen.intermediate_values) == ("PRUNED", {0: 0.1, 1: 0.2})


@pytest.mark.parametrize("directions", [["minimize"], ["maximize", "minimize"]])
def test_study_of_other_objective(tmp_path: Path, directions: Any) -> None:
    """Two objectives: a study of an earlier version."""
    optuna.create_study(storage=journal(tmp_path), study_name="study", directions=directions)
    with pytest.raises(ConfigError, match="has another objective"):
        study_in(Ledger.open(tmp_path), {}, search_of(), ACCURACY)


@pytest.mark.full
@pytest.mark.processes
def test_search_stopped_and_resumed(tmp_path: Path) -> None:
    """A pruned trial of two workers leaves nothing behind."""
    overrides = [
        *SMALL,
        "model.width=2",
        "data.train_size=40",
        "trainer.max_epochs=8",
        "trainer.devices=2",
    ]
    overrides += [
        "search=random",
        "search.num_trials=2",
        "sweep.name=study",
        "launcher.parallel=1",
        SEES % "2",
    ]
    overrides += ["optimizer.lr=tag(log,interval(0.001,0.1))"]
    # an accuracy below 1.1 is always poor
    pruner = ["search.pruner._target_=optuna.pruners.ThresholdPruner", "+search.pruner.lower=1.1"]
    pruner += ["~search.pruner.n_startup_trials", "search.pruner.n_warmup_steps=2"]
    with started(tmp_path, *overrides, *pruner) as sweep:
        wait_until(lambda: list(tmp_path.glob("outputs/*/*/1/metrics.csv")), "the second trial")
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 75, out
    first, second = trials_of(tmp_path)
    assert [trial.read_status()["state"] for trial in (first, second)] == ["pruned", "stopped"]
    assert processes_of(first) == []
    (tmp_path / "fast").touch()
    run(tmp_path, *overrides, "search.pruner=null", code=0)
    table = table_of(tmp_path)
    study = optuna.load_study(study_name="study", storage=journal(tree_of(tmp_path)))
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]
    assert table["best_trials"] == [study.best_trial.user_attrs["trial"]] == [1]
    assert study.best_value == pytest.approx(table["trials"][0]["val/accuracy"])
