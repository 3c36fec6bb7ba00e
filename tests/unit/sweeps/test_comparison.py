"""Tests of `lockstep compare` of settings and of predictions: what is paired, what is said, and what is refused."""

import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.cli import main
from lockstep.config.saved import config_file
from lockstep.sweeps.differences import paired_test, unpaired_test
from lockstep.sweeps.ledger import Ledger
from tests.support.harness import plan

PAIRS = {"0": (0.90, 0.92), "1": (0.91, 0.92), "2": (0.89, 0.93), "3": (0.90, 0.91)}


@pytest.fixture(scope="module")
def tree() -> dict[str, Any]:
    return config_file.to_tree(plan(()).configs[0])


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Exit code and output of `lockstep compare`, in this process and in a pipe."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["lockstep", "compare", *words])
        code = main._command()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def sweep(path: Path, tree: Mapping[str, Any], trials: Mapping[str, float | None], **tests: Sequence[float]) -> None:
    """Write a sweep of finished trials, those without a value running, each with the images of its fold."""
    path.mkdir()
    ledger = Ledger.open(path, None, ())
    for number, (words, best) in enumerate(trials.items()):
        folder = ledger.add(words.split(), str(number)).folder
        folder.path.mkdir()
        values = dict(word.split("=") for word in words.split())
        lr = {**tree["optimizer"], "lr": float(values.get("optimizer.lr", 0.1))}
        folder.config.write_text(yaml.safe_dump({**tree, "optimizer": lr, "seed": int(values.get("seed", 0))}))
        folder.write_status(state="finished" if best is not None else "training", host="elsewhere")
        if best is not None:
            folder.write_summary({"best": best, **{name: column[number] for name, column in tests.items()}})
            images = [f"{values.get('data.fold', 0)} of {values.get('data.folds', 3)}"]
            folder.images.write_bytes(gzip.compress(json.dumps({"test": {"names": images}}).encode()))
    ledger.write()


def of_seeds(at: int, lr: float = 0.1) -> dict[str, float | None]:
    return {f"optimizer.lr={lr} seed={seed}": values[at] for seed, values in PAIRS.items()}


def test_two_settings_are_paired_by_their_seeds(tmp_path: Path, tree: Any, said: Any) -> None:
    tests = {"test_accuracy": [0.8, 0.81, 0.82, 0.83, 0.85, 0.86, 0.87, 0.89], "test_loss": [0.5] * 4 + [0.25] * 4}
    sweep(tmp_path / "rates", tree, of_seeds(0) | of_seeds(1, 0.2), **tests)
    code, text = said("rates:optimizer.lr=0.1", "rates:optimizer.lr=0.2")
    expected = paired_test([second - first for first, second in PAIRS.values()], are_folds=False)
    assert code == 0
    lines = text.splitlines()
    assert lines[:2] == [
        "A  rates:optimizer.lr=0.1: 4 trials, finished seeds: 0, 1, 2, 3",
        "B  rates:optimizer.lr=0.2: 4 trials, finished seeds: 0, 1, 2, 3",
    ]
    assert "optimizer.lr  0.1  0.2" in lines
    assert lines[-3] == (
        f"val/accuracy 0.9000 and 0.9200: B is 0.0200 better than A ({expected.low:.4f} to {expected.high:.4f}, "
        f"4 seeds, paired t test, p = {expected.p:.2g}): may be chance."
    )
    assert lines[-2].startswith("test/accuracy 0.8150 and 0.8675: B is 0.0525 better than A (0.0")
    assert lines[-1].startswith(
        "test/loss 0.5000 and 0.2500: B is 0.2500 better than A (4 seeds, Wilcoxon signed-rank test, p ="
    )
    code, text = said("rates:optimizer.lr=0.1", "rates:optimizer.lr=0.2", "--json")
    found = json.loads(text)
    assert found["sides"][1]["results"]["val/accuracy"] == {seed: values[1] for seed, values in PAIRS.items()}
    assert found["differences"][0] == {
        "metric": "val/accuracy", "second": "rates:optimizer.lr=0.2", **expected._asdict(), "counts": [4],
    }  # fmt: skip


def test_other_seeds_are_compared_by_their_means_and_missing_ones_are_left_out(
    tmp_path: Path, tree: Any, said: Any
) -> None:
    sweep(tmp_path / "a", tree, {f"seed={seed}": values[0] for seed, values in PAIRS.items()})
    sweep(tmp_path / "b", tree, {f"seed={seed}7": values[1] for seed, values in PAIRS.items()} | {"seed=5": None})
    code, text = said("a", "b")
    expected = unpaired_test(*zip(*PAIRS.values(), strict=True))
    assert code == 0
    assert "B  b: 5 trials, finished seeds: 07, 17, 27, 37" in text
    assert f"4 and 4 seeds, Welch's t test, p = {expected.p:.2g}): " in text
    sweep(tmp_path / "c", tree, {f"seed={seed}": values[1] for seed, values in PAIRS.items() if seed != "1"})
    text = said("a", "c")[1]
    assert "val/accuracy 0.8967 and 0.9200: B is 0.0233 better" in text  # without seed 1
    assert "3 seeds, paired t test" in text


def test_the_settings_of_a_sweep_are_compared_with_its_best_for_all_pairs(tmp_path: Path, tree: Any, said: Any) -> None:
    once = {"optimizer.lr=0.4 seed=0": 0.99, "optimizer.lr=0.4 seed=1": None}
    worse = {f"optimizer.lr=0.3 seed={seed}": 0.87 + int(seed) / 1000 for seed in PAIRS}
    sweep(tmp_path / "rates", tree, of_seeds(0) | of_seeds(1, 0.2) | worse | once)
    code, text = said("rates")
    alone = paired_test([first - second for first, second in PAIRS.values()], are_folds=False)
    assert code == 0
    assert [line[:25] for line in text.splitlines()[:4]] == [
        f"{mark}  rates:optimizer.lr={lr}" for mark, lr in (("A", 0.2), ("B", 0.1), ("C", 0.3), ("-", 0.4))
    ]
    assert "-  rates:optimizer.lr=0.4: 2 trials, finished seeds: 0" in text
    assert f"B is 0.0200 worse than A ({-(alone.high or 0):.4f} to {-(alone.low or 0):.4f}, 4 seeds, " in text
    adjusted = {each["second"]: each["p"] for each in json.loads(said("rates", "--json")[1])["differences"]}
    assert adjusted["rates:optimizer.lr=0.1"] == pytest.approx(2 * alone.p)  # the second smallest of three
    assert "C is 0.0485 worse than A" in text
    assert text.endswith("p is adjusted for all 3 pairs (Holm), the intervals are not.\n")


def test_folds_are_paired_with_the_seeds_of_each_averaged(tmp_path: Path, tree: Any, said: Any) -> None:
    values = {f"data.fold={fold} seed={seed}": 0.8 + fold / 100 + seed / 50 for fold in range(3) for seed in range(2)}
    sweep(tmp_path / "a", tree, values)
    groups: Any = [{"test": 40}, {"test": 41}, {"test": 42}]
    sweep(tmp_path / "b", tree, {f"data.fold={fold}": 0.83 + fold / 50 for fold in range(3)}, groups=groups)
    expected = paired_test([0.02, 0.03, 0.04], are_folds=True)
    code, text = said("a", "b")
    assert code == 0
    assert text.startswith(
        "A  a: 6 trials, finished folds: 0, 1, 2\nB  b: 3 trials, finished folds: 0, 1, 2, 123 groups\n"
    )
    assert [side["num_groups"] for side in json.loads(said("a", "b", "--json")[1])["sides"]] == [0, 123]
    assert f"3 folds, corrected paired t test, p = {expected.p:.2g})" in text
    sweep(tmp_path / "c", tree, {f"data.fold={fold} data.folds=4": 0.83 + fold / 50 for fold in range(3)})
    code, text = said("a", "c")
    assert code == 2
    assert text.startswith("lockstep: fold 0 of a and of c has different images: compare folds of the same data")
    sweep(tmp_path / "d", tree, {f"data.fold={fold}": 0.8 for fold in (3, 4)})
    assert said("a", "d") == (
        2,
        REFUSED.format("a: 6 trials, finished folds: 0, 1, 2; d: 2 trials, finished folds: 3, 4"),
    )


REFUSED = "lockstep: compare needs settings with a common metric, each of two or more finished seeds or folds: {}.\n"


def test_what_says_nothing_is_refused_with_what_there_is(tmp_path: Path, tree: Any, said: Any) -> None:
    sweep(tmp_path / "rates", tree, of_seeds(0) | {"optimizer.lr=0.12345678 seed=0": 0.9})
    there = "rates:optimizer.lr=0.1: 4 trials, finished seeds: 0, 1, 2, 3; rates:optimizer.lr=0.1235: 1 trial"
    assert said("rates") == (2, REFUSED.format(f"{there}, finished seeds: 0"))
    assert said("rates:optimizer.lr=0.1", "rates:optimizer.lr=0.1235")[0] == 2
    for settings in ("optimizer.lr=0.3", "seed=0", "optimizer", "optimizer.lr=0.1,model.width=8"):
        assert said(f"rates:{settings}", "rates") == (
            2,
            f"lockstep: rates:{settings} names no setting of the sweep: "
            "choose one of rates:optimizer.lr=0.1; rates:optimizer.lr=0.1235.\n",
        )
    assert said("rates", "rates/0")[1].startswith("lockstep: rates/0 is not a sweep: compare settings of sweeps with")
    other = {**tree, "callbacks": {**tree["callbacks"]}}
    other["callbacks"]["checkpoint"] = {**other["callbacks"]["checkpoint"], "monitor": "val/loss", "mode": "min"}
    sweep(tmp_path / "losses", other, of_seeds(1))
    first = "rates:optimizer.lr=0.1"
    assert said(first, "losses")[0] == said(first, first, "losses")[0] == 2


def test_a_setting_may_be_named_as_the_table_shows_it(tmp_path: Path, tree: Any, said: Any) -> None:
    lists = {f"data.mean=[0.5,0.4] {words}": value for words, value in of_seeds(0, 0.12345678).items()}
    sweep(tmp_path / "rates", tree, lists | {f"data.mean=[0.5] {words}": value for words, value in of_seeds(1).items()})
    for name in ("optimizer.lr=0.1235", "optimizer.lr=0.12345678", "data.mean=[0.5,0.4],optimizer.lr=0.1235"):
        code, text = said(f"rates:{name}", "rates:optimizer.lr=0.1")
        assert (code, text.splitlines()[0].partition(": ")[0]) == (
            0,
            "A  rates:data.mean=[0.5,0.4],optimizer.lr=0.1235",
        )
