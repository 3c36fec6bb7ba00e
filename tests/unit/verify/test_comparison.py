"""What `lockstep verify` names as the first or the largest difference of two trainings."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lockstep.training.exactness_check import STATE_FILE, trace_file
from lockstep.verify.command import explanations
from lockstep.verify.comparison import Apart, Compared, compare, first_difference

NAN, INF = float("nan"), float("inf")
METRICS = {"train/loss": 0.5, "val/loss": 1.0}


def double(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def write_training(folder: Path, metrics: dict[str, float], variances: list[float]) -> Path:
    folder.mkdir()
    state = {
        "weights": {"net.fc.weight": double([1.0])},
        "statistics": {"net.bn.running_var": double(variances)},
    }
    torch.save(state | {"metrics": metrics}, folder / STATE_FILE)
    torch.save([], folder / trace_file(0, 0))
    return folder


def compare_with(
    path: Path, metrics: dict[str, float], one: list[float], other: list[float]
) -> Compared:
    alone = write_training(path / "alone", METRICS, one)
    return compare(alone, write_training(path / "other", metrics, other), [1], is_by_bits=False)


def explain(result: Compared) -> str:
    (text,) = explanations({"2 workers": result}, {}, is_by_bits=False)
    return text


@pytest.mark.parametrize("variance", [1.0, 1 + 2**-52])
def test_nan_metric_named(tmp_path: Path, variance: float) -> None:
    result = compare_with(tmp_path, METRICS | {"train/loss": NAN}, [1.0], [variance])
    assert not result.is_exact
    assert "train/loss differs by NaN: " in explain(result)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_equal_nan_and_infinity(tmp_path: Path, value: float) -> None:
    statistics = compare_with(tmp_path, METRICS, [value, 1.0], [value, 1 + 2**-52]).statistics
    assert statistics == Apart(2**-52, "net.bn.running_var")


def entry(outputs: list[list[float]], gradient: list[float]) -> dict[str, Any]:
    values = {"layer net.1 (Rank)": double(outputs)}
    sums = {"gradient of net.fc.weight": double(gradient)}
    return {"step": 1, "samples": torch.tensor([3, 849]), "values": values, "sums": sums}


def test_nan_output_named() -> None:
    one, other = (
        entry([[NAN, NAN], [1.0, 1.0]], [NAN, NAN]),
        entry([[NAN, NAN], [NAN, NAN]], [NAN, NAN]),
    )
    assert first_difference([one], [one], 1e-10) is None
    first = first_difference([one], [other], 1e-10)
    assert first is not None
    assert math.isnan(first.size)
    text = explain(
        Compared(Apart(NAN, "net.fc.weight"), Apart(0.0, ""), Apart(0.0, ""), first, 0.0)
    )
    assert "layer net.1 (Rank), sample 849, in step 1, by NaN: " in text
