"""`lockstep compare` of settings and of predictions: pairs, printed results, and refusals."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.config.saved import config_file
from lockstep.trials.differences import Difference, paired_test, unpaired_test
from lockstep.trials.ledger import Ledger
from tests.support.harness import plan

PAIRS = {"0": (0.90, 0.92), "1": (0.91, 0.92), "2": (0.89, 0.93), "3": (0.90, 0.91)}


@pytest.fixture(scope="module")
def tree() -> dict[str, Any]:
    return config_file.to_tree(plan(()).configs[0])


@pytest.fixture
def said(
    in_tmp_path: None, run_lockstep: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> Any:
    """Exit code and output of `lockstep compare`, in this process and in a pipe."""

    def call(*words: str) -> tuple[int, str]:
        code = run_lockstep("compare", *words)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def sweep(
    path: Path,
    tree: Mapping[str, Any],
    trials: Mapping[str, float | None],
    **tests: Sequence[float],
) -> None:
    """Write a sweep of finished trials, each with the images of its fold.

    Trials without a value are running.
    """
    path.mkdir()
    ledger = Ledger.open(path)
    for number, (words, best) in enumerate(trials.items()):
        folder = ledger.add(words.split(), str(number)).folder
        folder.path.mkdir()
        values = dict(word.split("=") for word in words.split())
        lr = {**tree["optimizer"], "lr": float(values.get("optimizer.lr", 0.1))}
        folder.config.write_text(
            yaml.safe_dump({**tree, "optimizer": lr, "seed": int(values.get("seed", 0))})
        )
        folder.write_status(state="finished" if best is not None else "training", host="elsewhere")
        if best is not None:
            folder.write_summary(
                {"best": best, **{name: column[number] for name, column in tests.items()}}
            )
            images = [f"{values.get('data.fold', 0)} of {values.get('data.folds', 3)}"]
            folder.images.write_bytes(
                gzip.compress(json.dumps({"test": {"names": images}}).encode())
            )
    ledger.write()


def of_seeds(at: int, lr: float = 0.1) -> dict[str, float | None]:
    return {f"optimizer.lr={lr} seed={seed}": values[at] for seed, values in PAIRS.items()}


def test_compare_paired_seeds(tmp_path: Path, tree: Any, said: Any) -> None:
    tests = {
        "test_accuracy": [0.8, 0.81, 0.82, 0.83, 0.85, 0.86, 0.87, 0.89],
        "test_loss": [0.5] * 4 + [0.25] * 4,
    }
    sweep(tmp_path / "rates", tree, of_seeds(0) | of_seeds(1, 0.2), **tests)
    expected = paired_test([second - first for first, second in PAIRS.values()], are_folds=False)
    sides = ("rates:optimizer.lr=0.1", "rates:optimizer.lr=0.2")
    code, text = said(*sides)
    assert code == 0
    assert f"B is 0.0200 better than A ({expected.low:.4f} to {expected.high:.4f}, 4 seeds" in text
    assert "test/loss 0.5000 and 0.2500: B is 0.2500 better than A" in text
    found = json.loads(said(*sides, "--json")[1])
    assert found["sides"][1]["results"]["val/accuracy"] == {
        seed: values[1] for seed, values in PAIRS.items()
    }
    assert found["differences"][0].items() >= {**expected._asdict(), "counts": [4]}.items()


def differences_of(said: Any, *sides: str) -> list[dict[str, Any]]:
    return json.loads(said(*sides, "--json")[1])["differences"]


@pytest.mark.parametrize(
    ("seeds", "expected", "counts"),
    [
        (
            {f"seed={seed}7": values[1] for seed, values in PAIRS.items()} | {"seed=5": None},
            unpaired_test(*zip(*PAIRS.values(), strict=True)),
            [4, 4],
        ),
        (
            {f"seed={seed}": PAIRS[seed][1] for seed in "023"},
            paired_test([PAIRS[seed][1] - PAIRS[seed][0] for seed in "023"], are_folds=False),
            [3],
        ),
    ],
    ids=["other seeds and a running one", "a seed is missing"],
)
def test_compare_other_seeds(
    tmp_path: Path,
    tree: Any,
    said: Any,
    seeds: dict[str, float | None],
    expected: Difference,
    counts: list[int],
) -> None:
    """Without a common seed they are compared by their means; a running trial is left out."""
    sweep(tmp_path / "a", tree, {f"seed={seed}": values[0] for seed, values in PAIRS.items()})
    sweep(tmp_path / "b", tree, seeds)
    (found,) = differences_of(said, "a", "b")
    assert found.items() >= {**expected._asdict(), "counts": counts}.items()


def test_compare_all_settings(tmp_path: Path, tree: Any, said: Any) -> None:
    """With the best one, adjusted for all pairs; a setting with one result is left out."""
    once = {"optimizer.lr=0.4 seed=0": 0.99, "optimizer.lr=0.4 seed=1": None}
    worse = {f"optimizer.lr=0.3 seed={seed}": 0.87 + int(seed) / 1000 for seed in PAIRS}
    sweep(tmp_path / "rates", tree, of_seeds(0) | of_seeds(1, 0.2) | worse | once)
    alone = paired_test([first - second for first, second in PAIRS.values()], are_folds=False)
    found = {each["second"]: each for each in differences_of(said, "rates")}
    assert list(found) == ["rates:optimizer.lr=0.1", "rates:optimizer.lr=0.3"]
    assert found["rates:optimizer.lr=0.1"]["value"] == pytest.approx(alone.value)
    # the second smallest of three
    assert found["rates:optimizer.lr=0.1"]["p"] == pytest.approx(2 * alone.p)


def test_compare_folds(tmp_path: Path, tree: Any, said: Any) -> None:
    """The seeds of a fold are averaged, and a fold has the same images on both sides."""
    values = {
        f"data.fold={fold} seed={seed}": 0.8 + fold / 100 + seed / 50
        for fold in range(3)
        for seed in range(2)
    }
    sweep(tmp_path / "a", tree, values)
    groups: Any = [{"test": 40}, {"test": 41}, {"test": 42}]
    sweep(
        tmp_path / "b",
        tree,
        {f"data.fold={fold}": 0.83 + fold / 50 for fold in range(3)},
        groups=groups,
    )
    expected = paired_test([0.02, 0.03, 0.04], are_folds=True)
    found = json.loads(said("a", "b", "--json")[1])
    assert [side["num_groups"] for side in found["sides"]] == [0, 123]
    assert found["differences"][0]["p"] == pytest.approx(expected.p)
    sweep(
        tmp_path / "c",
        tree,
        {f"data.fold={fold} data.folds=4": 0.83 + fold / 50 for fold in range(3)},
    )
    code, text = said("a", "c")
    assert (code, "different images" in text) == (2, True)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["rates"], "two or more finished seeds or folds"),
        (
            ["rates:optimizer.lr=0.1", "rates:optimizer.lr=0.12345678"],
            "two or more finished seeds or folds",
        ),
        (["rates:optimizer.lr=0.1", "losses"], "common metric"),
        (["rates:optimizer.lr=0.1", "rates:optimizer.lr=0.1", "losses"], "common metric"),
        (["rates:optimizer.lr=0.3", "rates"], "rates:optimizer.lr=0.3"),
        (["rates:seed=0", "rates"], "rates:seed=0"),
        (["rates:optimizer", "rates"], "rates:optimizer names"),
        (["rates:optimizer.lr=0.1,model.width=8", "rates"], "model.width=8"),
        (["rates", "rates/0"], "rates/0"),
    ],
)
def test_compare_errors(tmp_path: Path, tree: Any, said: Any, words: list[str], error: str) -> None:
    sweep(tmp_path / "rates", tree, of_seeds(0) | {"optimizer.lr=0.12345678 seed=0": 0.9})
    checkpoint = {**tree["callbacks"]["checkpoint"], "monitor": "val/loss", "mode": "min"}
    sweep(
        tmp_path / "losses",
        {**tree, "callbacks": {**tree["callbacks"], "checkpoint": checkpoint}},
        of_seeds(1),
    )
    code, text = said(*words)
    assert code == 2
    assert error in text
