"""The numbers of a benchmark, from the files of its runs: a record for each environment, with units in the names."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from lockstep.benchmark.environments import Environment
from lockstep.monitoring import cells
from lockstep.runs import discovery
from lockstep.runs.files import read_json
from lockstep.runs.folder import RunFolder
from lockstep.system.terminal import printable
from lockstep.system.wording import plural

Record = dict[str, Any]

PAYS = 1.1  # runs of the same work differ by up to a tenth
STEADY = 0.15  # of the median: epochs that deviate more are not compared
FEWEST = 3  # epochs, fewer of them do not show whether the machine was quiet


def skipped_record(environment: Environment, reason: str) -> Record:
    return {"name": environment.name, "device": environment.device, "state": "skipped", "reason": reason}


def record(environment: Environment, folder: RunFolder, state: str, reason: str) -> Record:
    """Return the record of a run; `state` is measured, stopped or failed.

    The speed is that of whole epochs; without one, `is_extrapolated`: from the images per second of the steps so far.
    """
    assert environment.config is not None
    status, epochs = folder.read_status(), discovery.read_rows(folder)
    whole = [row["images_per_s"] for row in epochs if row.get("images_per_s")]
    rates = whole or [rate for rate in [status.get("images_per_s")] if rate]
    images = status.get("train_images")
    return {
        "name": environment.name,
        "device": environment.device,
        "state": state,
        "reason": reason,
        "folder": folder.path.name,
        "nodes": environment.num_nodes,
        "workers": environment.num_workers,
        "threads_per_worker": environment.num_threads,
        "precision": status.get("precision"),
        "global_batch_size": environment.config.global_batch_size,
        "learning_rate": environment.config.optimizer.lr,
        "epochs": len(epochs),
        "max_epochs": environment.config.trainer.max_epochs,
        "steps": status.get("step"),
        "elapsed_s": status.get("elapsed_s"),
        "train_images": images,
        "images_per_s": spread(rates) if rates else None,
        "epoch_s": spread([images / rate for rate in rates]) if rates and images else None,
        "is_extrapolated": bool(rates) and not whole,
        "val_accuracy": accuracy(folder),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, extremes, and median absolute deviation from the median."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return {"median": middle, "low": min(values), "high": max(values), "deviation": deviation, "count": len(values)}


def accuracy(folder: RunFolder) -> float | None:
    """Return the validation accuracy of best.ckpt, from the training or an evaluation after it; None without one."""
    if not folder.best_checkpoint.exists():
        return None
    status = folder.read_status()
    best = status.get("best") if status.get("monitor") == "val/accuracy" else None
    return best if best is not None else read_json(folder.scores).get("val/accuracy")


def most_accurate(records: Sequence[Record]) -> Record | None:
    """Return the environment with the best network on the validation split, the first of equals."""
    validated = [r for r in records if r.get("val_accuracy") is not None]
    return max(validated, key=lambda r: r["val_accuracy"], default=None)


def single_worker_record(of: Record, records: Sequence[Record]) -> Record | None:
    """Return the record of one worker on the same device."""
    same = (r for r in records if r["device"] == of["device"] and r.get("workers") == 1)
    return next((r for r in same if r["images_per_s"]), None)


def is_unsteady(r: Record) -> bool:
    """Return True if some epochs were probably slowed down by another process, so that the median is unreliable."""
    return r["images_per_s"]["deviation"] > STEADY * r["images_per_s"]["median"]


def speed_up(r: Record, records: Sequence[Record]) -> float | None:
    """Images per second relative to one worker on the same device; None if either is missing or unsteady."""
    one = single_worker_record(r, records)
    if one is None or not r.get("images_per_s") or is_unsteady(one) or is_unsteady(r):
        return None
    return r["images_per_s"]["median"] / one["images_per_s"]["median"]


def verdict(records: Sequence[Record]) -> list[str]:
    """Return a sentence for each environment with several workers: whether they are faster."""
    several = [r for r in records if r.get("workers", 1) > 1 and r["images_per_s"]]
    if not several:
        return ["No environment with several workers was measured."]
    return [printable(_verdict_line(r, records)) for r in several]


def workers(r: Record) -> str:
    return plural(r["workers"], "worker") + (f" on {r['nodes']} machines" if r["nodes"] > 1 else "")


def _verdict_line(r: Record, records: Sequence[Record]) -> str:
    one, factor = single_worker_record(r, records), speed_up(r, records)
    if one is None:
        return f"{r['name']}: not compared, because no single worker on the same device was measured."
    if factor is None:
        unsteady = " and ".join(run["name"] for run in (one, r) if is_unsteady(run))
        problem = f"not compared: half of the epochs of {unsteady} are more than {STEADY:.0%} off the median"
        return f"{r['name']}: {problem}: use a quiet machine, or a larger benchmark.budget_s."
    pays = "more workers pay" if factor >= PAYS else "more workers cost time" if factor <= 1 / PAYS else "no difference"
    if min(r["epochs"], one["epochs"]) < FEWEST:
        pays = f"no verdict from fewer than {FEWEST} epochs, set a larger benchmark.budget_s"
    sizes = r["global_batch_size"], one["global_batch_size"]
    batch = f", with {sizes[0]} images a step instead of {sizes[1]}" if sizes[0] != sizes[1] else ""
    who = f"{r['name']}: {workers(r)} train"
    return f"{who} {factor:.2f} times the images per second of one ({one['name']}){batch}: {pays}."


def table(records: Sequence[Record]) -> Table:
    """Return a row for each environment with a run; - for a missing number. Fits into 80 columns."""
    found = Table("environment", box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    found.columns[0].overflow = "fold"
    for name in ("workers", "batch", "epochs", "time", "s/epoch", "images\nper s", "speed-\nup", "val\nacc."):
        found.add_column(name, justify="right", overflow="fold", vertical="bottom")
    for r in records:
        if r["state"] != "skipped":
            found.add_row(*(Text(printable(cell)) for cell in _cells(r, speed_up(r, records))))
    return found


def _cells(r: Record, factor: float | None) -> list[str]:
    return [
        r["name"],
        str(r["workers"]),
        str(r["global_batch_size"]),
        str(r["epochs"]),
        cells.time(r["elapsed_s"]),
        seconds(r["epoch_s"]["median"]) + "*" * r["is_extrapolated"] if r["epoch_s"] else "-",
        f"{r['images_per_s']['median']:,.0f}" if r["images_per_s"] else "-",
        f"{factor:.2f}x" if factor is not None else "-",
        f"{r['val_accuracy']:.4f}" if r["val_accuracy"] is not None else "-",
    ]


def seconds(value: float) -> str:
    """Seconds to three digits, without their unit."""
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:,.0f}"


def notes(records: Sequence[Record]) -> list[str]:
    """Footnotes of the table: extrapolated, skipped, stopped and failed environments."""
    texts = [f"{r['name']}: {r['state']}: {r['reason']}" for r in records if r["state"] != "measured"]
    if any(r.get("is_extrapolated") for r in records):
        texts.insert(0, "* no whole epoch within the budget: extrapolated from the images per second of its steps")
    return [printable(text) for text in texts]
