"""`lockstep status`: shows one run, and the commands to use next."""

import time

from rich.text import Text

from lockstep.monitoring import formatting
from lockstep.runs.discovery import has_bad_loss, read_run_folder, restrict_to_epoch
from lockstep.runs.files import JsonObject, print_json
from lockstep.runs.folder import LIVE_STATES, RunFolder
from lockstep.runs.naming import display_path, quote_path, resume_command
from lockstep.system.terminal import duration, show_table

Rows = list[tuple[str, str | Text]]


def show_status(folder: RunFolder, *, is_json: bool) -> int:
    facts = restrict_to_epoch(read_run_folder(folder), folder)
    if is_json:
        del facts["id"]
        print_json(facts | {"path": str(folder.path)})
        return 0
    show_table(
        facts.get("name", folder.path.name),
        [*_progress(facts), *_process(facts, folder), _next(facts, folder)],
    )
    return 0


def _progress(facts: JsonObject) -> Rows:
    rows: Rows = [
        ("state", formatting.state(facts["state"])),
        ("reason", facts.get("reason", "") or _silence(facts)),
    ]
    if "percent" in facts:
        rows.append(("progress", f"{facts['percent']:.1f} %"))
    if "epoch" in facts:
        rows.append(("epoch", _epoch(facts)))
    if facts.get("skipped_steps"):
        rows.append(("skipped", f"{facts['skipped_steps']:,} steps"))
    if "elapsed_s" in facts:
        rows.append(("time", _time(facts)))
    if facts.get("images_per_s"):
        rows.append(("speed", f"{facts['images_per_s']:,.0f} images/s"))
    if facts.get("epoch_s"):
        rows.append(("epoch time", duration(facts["epoch_s"])))
    if "learning_rate" in facts:
        rows.append(("learning rate", f"{facts['learning_rate']:.4g}"))
    if "best" in facts:
        rows.append(("best", formatting.best(facts)))
    rows.append(("weights", facts.get("weights_sha256", "")[:12]))
    if "metrics_epoch" in facts:
        rows.append(("metrics", _epoch_of_metrics(facts)))
    return rows + [(metric, formatting.number(value)) for metric, value in facts["metrics"].items()]


def _epoch(facts: JsonObject) -> str:
    epoch = f"{facts['epoch']} of {facts.get('max_epochs', '?')}"
    if "step" in facts:
        epoch += f", step {facts['step']:,}"
    if "total_steps" in facts:
        epoch += f" of {facts['total_steps']:,}"
    return epoch


def _time(facts: JsonObject) -> str:
    elapsed = duration(facts["elapsed_s"])
    if facts["state"] in LIVE_STATES and facts.get("remaining_s"):
        return f"{elapsed}, about {duration(facts['remaining_s'])} left"
    return elapsed


def _epoch_of_metrics(facts: JsonObject) -> str:
    kind = "best" if facts["state"] == "finished" and "best" in facts else "newest"
    return f"of epoch {facts['metrics_epoch']}, the {kind} one"


def _since(moment: float) -> float:
    """Return the seconds since a moment, or 0 if a clock was set back."""
    return max(0.0, time.time() - moment)


def _silence(facts: JsonObject) -> str:
    if facts["state"] != "no signal":
        return ""
    ago = f" for {duration(_since(facts['updated']))}" if "updated" in facts else ""
    return f"its process is gone, or {facts.get('host', 'its machine')} has been silent{ago}"


def _process(facts: JsonObject, folder: RunFolder) -> Rows:
    workers = facts.get("device", "")
    if facts.get("workers", 1) > 1:
        workers = f"{facts['workers']} x {workers}"
    rows: Rows = [
        ("workers", workers),
        ("worker weights", facts.get("worker_weights", "")),
        ("precision", facts.get("precision", "")),
    ]
    if "pid" in facts:
        rows.append(("process", f"pid {facts['pid']} on {facts.get('host', 'its machine')}"))
    if "started" in facts:
        rows.append(("started", formatting.moment(facts["started"])))
    if facts.get("updated"):
        ago = f"{duration(_since(facts['updated']))} ago"
        rows.append(("updated", f"{formatting.moment(facts['updated'])}, {ago}"))
    if folder.failure.is_file():
        rows.append(("failure", display_path(folder.failure)))
    rows.append(("run folder", display_path(folder.path)))
    return rows


def _next(facts: JsonObject, folder: RunFolder) -> tuple[str, str]:
    """Return the next action for the state, and its command."""
    run, state, resume = quote_path(folder.path), facts["state"], resume_command(folder.path)
    if state == "stopping":
        return "then resume", resume
    if state in LIVE_STATES:
        return "stop", f"lockstep stop {run}"
    if state == "finished":
        return "evaluate", f"lockstep eval {run}"
    if state == "not started":
        has_job = folder.job_file.is_file()
        return ("look", f"lockstep jobs show {run}") if has_job else ("start", resume)
    if state == "broken":
        return "look", f"cat {quote_path(folder.status_file)}"
    if has_bad_loss(facts):
        return "look", f"cat {quote_path(folder.failure)}"
    return ("resume" if folder.last_checkpoint.exists() else "try again"), resume
