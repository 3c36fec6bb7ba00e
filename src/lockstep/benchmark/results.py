"""From the files of the runs to the numbers of a benchmark: one record for each environment, units in the names."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lockstep.benchmark import scaling
from lockstep.benchmark.environments import Environment
from lockstep.benchmark.scaling import Spread, Terms, spread
from lockstep.runs.files import read_json
from lockstep.runs.folder import RunFolder
from lockstep.system.terminal import printable

Record = dict[str, Any]


def skipped(environment: Environment) -> Record:
    """The record of an environment that is not there, or that nobody waited for."""
    return {"name": environment.name, "device": environment.device, "state": "skipped", "reason": environment.skipped}


def record(environment: Environment, folder: RunFolder, state: str, reason: str) -> Record:
    """Everything that is known of a run; its `state` is measured, stopped or failed."""
    assert environment.config is not None
    status, measured = folder.read_status(), read_json(folder.measurement)
    rates = [float(row["images_per_s"]) for row in folder.read_metrics() if row["images_per_s"]]
    is_whole = bool(rates)
    rates = rates or [rate for rate in [status.get("images_per_s")] if rate]
    images = status.get("train_images")
    seen = status.get("best") if status.get("monitor") == "val/accuracy" else None  # where the end came too early
    known: Record = {
        "name": environment.name,
        "device": environment.device,
        "state": state,
        "reason": reason,
        "folder": folder.path.name,
        "workers": environment.num_workers,
        "devices": measured.get("devices", []),
        "threads_per_worker": measured.get("threads_per_worker", environment.num_threads),
        "precision": status.get("precision"),
        "global_batch_size": environment.config.global_batch_size,
        "learning_rate": environment.config.optimizer.lr,
        "epochs": len(folder.read_metrics()),
        "max_epochs": environment.config.trainer.max_epochs,
        "steps": status.get("step"),
        "train_images": images,
        "images_per_s": asdict(spread(rates)) if rates else None,
        "epoch_s": asdict(spread([images / rate for rate in rates])) if rates and images else None,
        "is_extrapolated": bool(rates) and not is_whole,
        "checkpoint": checkpoint(folder),
        "val_accuracy": measured.get("val_accuracy", seen),
        "val_images": measured.get("val_images"),
    }
    return known | (_steps(known, measured) if measured else {})


def checkpoint(folder: RunFolder) -> str | None:
    """`best`, or `last` where no epoch was finished, or None."""
    names = {"best": folder.best_checkpoint, "last": folder.last_checkpoint}
    return next((name for name, path in names.items() if path.exists()), None)


def _steps(known: Record, measured: Record) -> Record:
    """What `measurement.json` says of the steps, with what follows from it."""
    peaks = {name: spread(values) for name, values in measured["peak_flops_per_s"].items()}
    flops, rate = measured["flops_per_image"], known["images_per_s"]
    peak = peaks[measured["precision"]].high
    step_terms = terms(known["workers"], measured)
    between = scaling.network(step_terms)
    predicted = [scaling.predict(step_terms, n) for n in sorted({known["workers"], *scaling.FAR})]
    return {
        "num_parameters": measured["num_parameters"],
        "flops_per_image": flops,
        "peak_flops_per_s": {name: asdict(value) for name, value in peaks.items()},
        "mfu": flops * rate["median"] / peak if rate else None,
        "peak_memory_bytes": measured["peak_memory_bytes"],
        "terms": asdict(step_terms),
        "shares": step_terms.shares(),
        "communication_is_noise": step_terms.is_noise,
        "latency_s": between.latency_s if between else None,
        "synchronization_s": scaling.synchronization_s(step_terms) if between else None,
        "bandwidth_bytes_per_s": between.bytes_per_s if between else None,
        "predictions": [asdict(p) for p in predicted if p is not None],
    }


def terms(num_workers: int, measured: Record) -> Terms:
    """The terms of a step, of what was timed."""
    full, local = measured["steps_s"]["full"], measured["steps_s"]["local"]
    is_alone = num_workers == 1
    reduces = {name: spread(values) for name, values in measured["all_reduce_s"].items()}
    norms, num_bytes = measured["num_batch_norms"], measured["gradient_bytes"]
    return Terms(
        num_workers=num_workers,
        step=spread(full + local if is_alone else full),
        input=spread(measured["steps_s"]["input"]),
        compute=spread(full + local if is_alone else local),
        communication=None if is_alone else spread([a - b for a, b in zip(full, local, strict=True)]),
        message=reduces.get("message"),
        gradient=reduces.get("gradient"),
        gradient_bytes=num_bytes,
        num_all_reduces=norms + scaling.num_buckets(num_bytes, measured["bucket_mib"]),
        num_all_gathers=norms,
        backend=measured["backend"],
    )


def terms_of(entry: Record) -> Terms | None:
    """The terms of a step in a record, None where they were not measured."""
    if "terms" not in entry:
        return None
    values = dict(entry["terms"])
    for name in ("step", "input", "compute", "communication", "message", "gradient"):
        values[name] = Spread(**values[name]) if values[name] is not None else None
    return Terms(**values)


def result(entry: Record) -> scaling.Result:
    """What the words about an environment need, of one that trained."""
    rate, epoch_s = entry["images_per_s"]["median"], entry.get("epoch_s")
    spread_s = Spread(**epoch_s) if epoch_s else None
    return scaling.Result(entry["name"], entry["device"], entry["workers"], rate, terms_of(entry), spread_s)


def words(records: Sequence[Record]) -> list[str]:
    """Whether more workers pay, and why."""
    return scaling.verdict([result(r) for r in records if r.get("images_per_s")])


def most_accurate(records: Sequence[Record]) -> Record | None:
    """The environment whose network is kept: the best on the validation split, the first of equals."""
    trained = [r for r in records if r.get("checkpoint") and r.get("val_accuracy") is not None]
    return max(trained, key=lambda r: r["val_accuracy"], default=None)


# -- for people --------------------------------------------------------------------------------------------------------

COLUMNS = (
    "environment",
    "workers",
    "batch",
    "s/epoch",
    "images/s",
    "factor",
    "epochs",
    "val acc.",
    "compute",
    "input",
    "comm.",
    "MFU",
    "memory",
)


def rows(records: Sequence[Record]) -> list[list[str]]:
    """A row of `COLUMNS` for each environment that was trained in; - is what was not measured."""
    return [_cells(r, factor(r, records)) for r in records if r["state"] != "skipped"]


def factor(entry: Record, records: Sequence[Record]) -> float | None:
    """How many times faster an epoch is than in the first environment that has one; None where one is unsteady."""
    first = next((r for r in records if r.get("epoch_s")), None)
    if first is None or not entry.get("epoch_s") or result(first).unsteady or result(entry).unsteady:
        return None
    return first["epoch_s"]["median"] / entry["epoch_s"]["median"]


def _cells(r: Record, times: float | None) -> list[str]:
    measured = terms_of(r)
    shares = r["shares"] if measured is not None and not measured.is_unsteady else {}
    accuracy, memory = r["val_accuracy"], r.get("peak_memory_bytes")
    epoch_s, rate = r["epoch_s"], r["images_per_s"]
    mark = "*" if r["is_extrapolated"] else ""
    communication = "unsteady" if measured is not None and measured.is_unsteady else "-"
    if r["workers"] > 1 and shares:
        communication = "noise" if r["communication_is_noise"] else scaling.percent(shares["communication"])
    return [
        r["name"],
        str(r["workers"]),
        str(r["global_batch_size"]),
        seconds(epoch_s["median"]) + mark if epoch_s else "-",
        f"{rate['median']:,.0f}" if rate else "-",
        f"{times:.2f}x" if times else "-",
        f"{r['epochs']} of {r['max_epochs']}",
        f"{accuracy:.4f}" if accuracy is not None else "-",
        scaling.percent(shares["compute"]) if shares else "-",
        scaling.percent(shares["input"]) if shares else "-",
        communication,
        f"{r['mfu']:.1%}" if r.get("mfu") is not None else "-",
        f"{max(memory) / 2**20:,.0f} MiB" if memory else "-",
    ]


def seconds(value: float) -> str:
    """Seconds to three digits, without their unit."""
    if value < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def notes(records: Sequence[Record]) -> list[str]:
    """What a reader of the rows must know: extrapolated, skipped, stopped and failed."""
    texts = []
    if any(r.get("is_extrapolated") for r in records):
        texts.append("* no whole epoch in the budget: extrapolated from the images per second of its steps")
    for r in records:
        unsteady = result(r).unsteady if r.get("images_per_s") else ""
        texts += [f"{r['name']}: {unsteady}: too unsteady for factors and shares"] if unsteady else []
    texts += [f"{r['name']}: {r['state']}: {r['reason']}" for r in records if r["state"] != "measured"]
    return [printable(note) for note in texts]


def table(records: Sequence[Record], width: int) -> str:
    """The rows in columns; below each other where the terminal is too narrow for that."""
    lines = [[printable(cell) for cell in line] for line in rows(records)]
    if not lines:
        return ""
    wide = [max(len(line[i]) for line in [list(COLUMNS), *lines]) for i in range(len(COLUMNS))]
    if sum(wide) + 2 * (len(wide) - 1) <= width:
        return "\n".join(
            "  ".join(
                f"{cell:<{w}}" if i == 0 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, wide, strict=True))
            )
            for line in [list(COLUMNS), *lines]
        )
    blocks = []
    for name, *cells in lines:
        pairs = [f"  {column:<13}  {cell}" for column, cell in zip(COLUMNS[1:], cells, strict=True)]
        blocks.append("\n".join([name, *pairs]))
    return "\n".join(blocks)
