"""Computes the results of a benchmark from the files of its runs.

There is a record for each environment, with units in the names.
"""

import os
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from lockstep.benchmark.environments import Environment
from lockstep.config.schema.configuration import BenchmarkConfig
from lockstep.runs import discovery
from lockstep.runs.files import JsonObject
from lockstep.runs.folder import RunFolder
from lockstep.system.redaction import redact

Record = JsonObject

HEADS = (
    "environment",
    "workers",
    "batch",
    "epochs",
    "s/epoch",
    "images/s",
    "speed-up",
    "test/accuracy",
)


def new_benchmark(path: Path, config: BenchmarkConfig, arguments: Sequence[str]) -> JsonObject:
    """Return the content of results.json in the folder `path` before the first environment."""
    # In the job of a submission, the folder has the overrides of the submission.
    overrides = RunFolder(path).read_overrides() or redact(arguments)
    return {
        "command": shlex.join(["lockstep", "benchmark", *overrides]),
        "date": datetime.now().astimezone().isoformat(" ", "seconds"),
        "name": config.run_name,
        "settings": config.benchmark.model_dump(),
        "nodes": os.environ.get("SLURM_JOB_NODELIST"),
        "environment": {},
        "environments": [],
    }


def record(
    environment: Environment,
    folder: RunFolder,
    state: str,
    reason: str,
    test_accuracy: float | None = None,
) -> Record:
    """Return the record of a run, where `state` is measured, stopped or failed.

    The speed is that of complete epochs, or without one that of the steps so far.
    """
    status, epochs = folder.read_status(), discovery.read_rows(folder)
    rates = [row["images_per_s"] for row in epochs or [status] if row.get("images_per_s")]
    accuracies = [row["val/accuracy"] for row in epochs if "val/accuracy" in row]
    return {
        "name": environment.name,
        "device": environment.device,
        "state": state,
        "reason": reason,
        "nodes": environment.num_nodes,
        "workers": environment.num_workers,
        "threads_per_worker": environment.num_threads,
        "precision": status.get("precision"),
        "global_batch_size": environment.config.global_batch_size,
        "learning_rate": environment.config.optimizer.lr,
        "epochs": len(epochs),
        "elapsed_s": status.get("elapsed_s"),
        "train_images": status.get("train_images"),
        "images_per_s": spread(rates) if rates else None,
        "epoch_s": spread([status["train_images"] / rate for rate in rates]) if rates else None,
        "val_accuracy": max(accuracies, default=None),
        "test_accuracy": test_accuracy,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "low": min(values), "high": max(values), "count": len(values)}


def speed_up(r: Record, records: Sequence[Record]) -> float | None:
    """Return the images per second relative to one worker on the same device.

    Returns None if either was not measured.
    """
    singles = [b for b in records if b["device"] == r["device"] and b.get("workers") == 1]
    speeds = [b["images_per_s"]["median"] for b in singles if b["images_per_s"]]
    return r["images_per_s"]["median"] / speeds[0] if speeds and r["images_per_s"] else None


def summary(r: Record) -> str:
    return f"{r['name']}: {r['state']}" + (f": {r['reason']}" if r["reason"] else "")


def rows(records: Sequence[Record]) -> list[list[str]]:
    """Return the cells below HEADS for each environment that was started.

    A missing number is "-".
    """
    return [_cells(r, speed_up(r, records)) for r in records if r["state"] != "skipped"]


def _cells(r: Record, factor: float | None) -> list[str]:
    return [
        r["name"],
        str(r["workers"]),
        str(r["global_batch_size"]),
        str(r["epochs"]),
        f"{r['epoch_s']['median']:.4g}" if r["epoch_s"] else "-",
        f"{r['images_per_s']['median']:,.0f}" if r["images_per_s"] else "-",
        f"{factor:.2f}" if factor is not None else "-",
        f"{r['test_accuracy']:.4f}" if r["test_accuracy"] is not None else "-",
    ]
