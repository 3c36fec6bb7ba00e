"""Made-up records of a benchmark."""

from typing import Any

from lockstep.benchmark import scaling
from lockstep.benchmark.scaling import Spread, Terms, spread


def exactly(value: float) -> Spread:
    return Spread(value, value, value, 0.0, 5)


# message: 2 (W-1) latency = 2 ms, so the latency is 1 ms; the gradients move 2 (W-1)/W = 1 times 10^6 bytes in 8 ms
TWO = Terms(
    num_workers=2,
    step=exactly(0.150),
    input=exactly(0.010),
    compute=exactly(0.090),
    communication=exactly(0.060),
    message=exactly(0.002),
    gradient=exactly(0.010),
    gradient_bytes=1_000_000,
    num_all_reduces=4,
    num_all_gathers=2,
    backend="gloo",
)
ONE = Terms(1, exactly(0.1), exactly(0.01), exactly(0.1), None, None, None, 1_000_000, 4, 2)


def record(name: str, terms: Terms, seconds: float, **changes: Any) -> dict[str, Any]:
    from dataclasses import asdict

    between = scaling.network(terms)
    predicted = [scaling.predict(terms, n) for n in scaling.FAR]
    return {
        "name": name,
        "device": "cpu",
        "state": "measured",
        "reason": "",
        "workers": terms.num_workers,
        "devices": ["EPYC"] * terms.num_workers,
        "threads_per_worker": 1,
        "precision": "float32",
        "global_batch_size": 64,
        "epochs": 3,
        "max_epochs": 10,
        "images_per_s": asdict(exactly(1000 / seconds)),
        "epoch_s": asdict(spread([0.9 * seconds, seconds, 1.2 * seconds])),
        "is_extrapolated": False,
        "val_accuracy": 0.9,
        "checkpoint": "best",
        "flops_per_image": 10**9,
        "peak_flops_per_s": {"float32": asdict(exactly(1e11))},
        "mfu": 0.3,
        "peak_memory_bytes": [2**29] * terms.num_workers,
        "terms": asdict(terms),
        "shares": terms.shares(),
        "communication_is_noise": terms.is_noise,
        "latency_s": between.latency_s if between else None,
        "bandwidth_bytes_per_s": between.bytes_per_s if between else None,
        "predictions": [asdict(p) for p in predicted if p is not None],
        **changes,
    }


def whole(*records: dict[str, Any], name: str = "digits") -> dict[str, Any]:
    return {
        "command": f"lockstep benchmark {name}",
        "date": "2026-11-21 12:00:00+00:00",
        "experiment": {"data": name, "model": "ResNet18", "name": None},
        "settings": {"budget_s": 60.0},
        "environment": {"cpu": name, "cpu_cores": 2, "gpus": [name, name], "commit": "abc", "packages": {"torch": "2"}},
        "environments": list(records),
        "kept": {"environment": name, "checkpoint": "best.ckpt", "val_accuracy": 0.9, "command": "lockstep eval x"},
        "verdict": [f"It pays. {name}"],
    }
