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
        print_json(formatting.plain_facts(facts, folder.path))
        return 0
    show_table(
        facts.get("name", folder.path.name),
        [*_progress(facts), *_process(facts, folder), _next(facts, folder)],
    )
    return 0


def _progress(facts: JsonObject) -> Rows:
    state, is_live = facts["state"], facts["state"] in LIVE_STATES
    steps = f", step {facts['step']:,}" if "step" in facts else ""
    steps += f" of {facts['total_steps']:,}" if steps and "total_steps" in facts else ""
    has_time = is_live and facts.get("epoch_remaining_s")
    inside = f", {duration(facts['epoch_remaining_s'])} left in this epoch" if has_time else ""
    since = _since(facts["updated"]) if is_live and "updated" in facts else 0.0
    elapsed = ""
    if "elapsed_s" in facts:
        elapsed = f"{duration(facts['elapsed_s'] + since)}{' so far' if is_live else ''}"
    if is_live and facts.get("remaining_s"):
        elapsed += f", about {duration(facts['remaining_s'])} left"
    speed = [f"{facts['images_per_s']:,.0f} images/s"] if facts.get("images_per_s") else []
    speed += [f"{duration(facts['epoch_s'])} an epoch"] if facts.get("epoch_s") else []
    rows: Rows = [
        ("state", formatting.state(state)),
        ("reason", facts.get("reason", "") or _silence(facts)),
        ("progress", f"{facts['percent']:.1f} %" if "percent" in facts else ""),
        (
            "epoch",
            f"{facts['epoch']} of {facts.get('max_epochs', '?')}{steps}{inside}"
            if "epoch" in facts
            else "",
        ),
        ("skipped", f"{facts['skipped_steps']:,} steps" if facts.get("skipped_steps") else ""),
        ("time", elapsed),
        ("speed", ", ".join(speed)),
        ("learning rate", f"{facts['learning_rate']:.4g}" if "learning_rate" in facts else ""),
        ("best", formatting.best(facts) if "best" in facts else ""),
        ("weights", facts.get("weights_sha256", "")[:12]),
        ("metrics", _epoch_of_metrics(facts) if "metrics_epoch" in facts else ""),
    ]
    return rows + [(metric, formatting.number(value)) for metric, value in facts["metrics"].items()]


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
    device, updated = facts.get("device", ""), facts.get("updated")
    process = f"pid {facts['pid']}" if "pid" in facts else ""
    process += f" on {facts['host']}" if process and "host" in facts else ""
    ago = f", {duration(_since(updated))} ago" if updated else ""
    return [
        ("workers", f"{facts['workers']} x {device}" if facts.get("workers", 1) > 1 else device),
        ("worker weights", facts.get("worker_weights", "")),
        ("precision", facts.get("precision", "")),
        ("process", process),
        ("started", formatting.moment(facts["started"]) if "started" in facts else ""),
        ("updated", f"{formatting.moment(updated)}{ago}" if updated else ""),
        ("failure", display_path(folder.failure) if folder.failure.is_file() else ""),
        ("run folder", display_path(folder.path)),
    ]


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
        return (
            ("look", f"lockstep jobs show {run}")
            if folder.job_file.is_file()
            else ("start", resume)
        )
    if state == "broken":
        return "look", f"cat {quote_path(folder.status_file)}"
    if has_bad_loss(facts):
        return "look", f"cat {quote_path(folder.failure)}"
    return ("resume" if folder.last_checkpoint.exists() else "try again"), resume
