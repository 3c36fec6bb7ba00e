"""`lockstep runs --prune`: removes run folders, by default failed ones without a checkpoint, after confirmation."""

import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.monitoring import cells
from lockstep.monitoring.selection import Listed, Selection, all_runs
from lockstep.runs import gate
from lockstep.runs.discovery import DiscoveredRun, Watched, look, modified_ns
from lockstep.runs.folder import (
    BENCHMARK,
    ENDED_STATES,
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    SILENT_S,
    RunFolder,
)
from lockstep.runs.naming import display_path, link_latest
from lockstep.system.terminal import new_table, print_table, printable, terminal
from lockstep.system.wording import plural, size_text

REMOVABLE = (*ENDED_STATES, "no signal", "not started")
LEFTOVERS = ("failed", "no signal", "not started")


def prune(selection: Selection, *, is_sure: bool) -> int:
    """Remove the selected runs, by default LEFTOVERS without a checkpoint, after confirmation. Return the exit code."""
    wrong = [state for state in selection.states if state not in REMOVABLE]
    if wrong:
        known = ", ".join(state.replace(" ", "-") for state in REMOVABLE)
        raise ValueError(f"--prune does not remove runs that are {' or '.join(wrong)}: choose from {known}.")
    is_named = bool(selection.states)
    root = selection.root.resolve()  # the targets of links are compared with it
    going: list[DiscoveredRun] = []
    watched = Watched(root, scan_every_s=0.0)
    selection.check(all_runs(watched))
    for run in Selection(root, selection.terms, selection.states or LEFTOVERS, is_removal=True).matching_runs(watched):
        if not is_named and _has_checkpoint(run.discovered):
            continue
        if reason := _reason_to_stay(run, is_named=is_named):
            _print_kept(run.discovered, reason)
        else:
            going.append(run.discovered)
    if not going:
        which = "in these states" if is_named else "that failed without a checkpoint (others with --state)"
        print(f"Nothing to remove: no run {which} below {printable(display_path(root))}.")
        return 0
    return remove(going, root, is_sure=is_sure)


def remove(runs: Sequence[DiscoveredRun], root: Path, *, is_sure: bool) -> int:
    """Remove these runs below `root` after confirmation. Returns the exit code."""
    runs = sorted(runs, key=lambda run: len(run.folder.path.parts), reverse=True)  # inner ones first
    found = [(run, look(run), _size(run.folder)) for run in runs]
    total = f"{plural(len(runs), 'run')}, {size_text(sum(size for *_, size in found))}"
    rows = [
        (cells.state(facts["state"]), run.name, size_text(size), "checkpoint" if _has_checkpoint(run) else "")
        for run, facts, size in found
    ]
    out = terminal()
    print_table(new_table(("state", "run", "size", ""), rows, out, right=("size",)), out)
    if not is_sure:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print("lockstep: nothing was removed: add --yes to remove these without asking.", file=sys.stderr)
            return EXIT_CONFIG
        try:
            is_sure = input(f"Remove {total}? [y/N] ").strip().casefold() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            print("\nNothing was removed.")
            return EXIT_INTERRUPTED
        if not is_sure:
            print("Nothing was removed.")
            return 0
    return _remove_all(found, root)


def _size(folder: RunFolder) -> int:
    return sum(path.lstat().st_size for path in folder.path.rglob("*") if not path.is_dir())


def _has_checkpoint(run: DiscoveredRun) -> bool:
    return any(run.folder.path.rglob("*.ckpt"))


def _reason_to_stay(run: Listed, *, is_named: bool) -> str:
    folder, facts = run.discovered.folder, run.facts
    if not folder.is_made_here():
        return f"it {gate.origin(folder)}"
    if folder.job_file.is_file():
        return "it has a job, remove it with lockstep jobs delete"
    if not folder.lock_file.is_file():
        return "it was never trained"
    if folder.is_locked():
        return "it is being trained"
    if (folder.path.parent / BENCHMARK).is_file():
        return "it is part of a benchmark, remove that as a whole"
    if facts["state"] == "not started" and folder.now_s() - modified_ns(folder.config) / 1e9 < SILENT_S:
        return "it may be starting on another machine, wait ten minutes"
    host = printable(facts.get("host", ""))
    if facts["state"] == "no signal" and not is_named and host not in ("", socket.gethostname()):
        return f"it ran on {host}, whose processes cannot be checked here: add --state no-signal if it is over"
    return ""


def _print_kept(run: DiscoveredRun, reason: str) -> None:
    print(f"Kept: {printable(run.name)}: {reason}", file=sys.stderr)


def _remove_all(found: Sequence[tuple[DiscoveredRun, dict[str, Any], int]], root: Path) -> int:
    removed: list[Path] = []
    num_bytes = 0
    try:
        for run, facts, size in found:
            if reason := _remove_run(run, facts):
                _print_kept(run, reason)
            else:
                removed.append(run.folder.path)
                num_bytes += size
    except KeyboardInterrupt:
        print("Interrupted by Ctrl-C.", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        _tidy(removed, root)
        print(f"Removed {plural(len(removed), 'run')}, {size_text(num_bytes)}.")
    return 0 if len(removed) == len(found) else EXIT_FAILED


def _remove_run(run: DiscoveredRun, facts: dict[str, Any]) -> str:
    """Remove a run under its lock. Returns the reason if it stays."""
    folder = run.folder
    try:
        gate.need_made_here(folder, "remove it by hand")  # links in it are removed, not followed
        with folder.lock():
            if look(run).get("updated") != facts.get("updated"):
                return "it was resumed in the meantime"
            nested = (RunFolder(path.parent) for path in folder.path.rglob(folder.config.name) if path != folder.config)
            if folder.read_job().get("command"):  # with all its runs
                if any(inner.is_locked() for inner in nested):
                    return "one of its runs is being trained"
            # a job that waits has no lock yet
            elif any(inner.lock_file.exists() or inner.facts_file.exists() for inner in nested):
                return "it contains another run"
            folder.remove()
    except BlockingIOError:
        return "it is being trained"
    except OSError as error:
        return f"it could not be removed: {error.strerror or type(error).__name__}"
    return ""


def _tidy(removed: Sequence[Path], root: Path) -> None:
    """Point each `latest` of a removed run to the newest remaining one, or remove it; remove empty folders."""
    for above in sorted({parent for path in removed for parent in path.parents}, reverse=True):  # inner ones first
        link = above / "latest"
        if link.is_symlink() and Path(os.path.realpath(link)) in removed:
            if left := all_runs(Watched(above, scan_every_s=0.0)):
                link_latest(above, left[0].discovered.folder.path)
            else:
                link.unlink()
        if above != root and above.is_relative_to(root):
            with contextlib.suppress(OSError):  # not empty, or of another user
                above.rmdir()
