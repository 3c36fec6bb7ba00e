"""`lockstep jobs delete`: removes the run folders of jobs that have ended, after confirmation."""

import sys
from collections.abc import Sequence
from typing import Any

from lockstep.monitoring import cells
from lockstep.runs import gate
from lockstep.runs.discovery import DiscoveredRun, look
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, RunFolder
from lockstep.system.terminal import new_table, print_table, printable, terminal
from lockstep.system.wording import plural, size_text


def remove(runs: Sequence[DiscoveredRun], *, is_sure: bool) -> int:
    """Remove these runs after confirmation. Returns the exit code."""
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
    return _remove_all(found)


def _size(folder: RunFolder) -> int:
    return sum(path.lstat().st_size for path in folder.path.rglob("*") if not path.is_dir())


def _has_checkpoint(run: DiscoveredRun) -> bool:
    return any(run.folder.path.rglob("*.ckpt"))


def _remove_all(found: Sequence[tuple[DiscoveredRun, dict[str, Any], int]]) -> int:
    num_removed = num_bytes = 0
    try:
        for run, facts, size in found:
            if reason := _remove_run(run, facts):
                print(f"Kept: {printable(run.name)}: {reason}", file=sys.stderr)
            else:
                num_removed += 1
                num_bytes += size
    except KeyboardInterrupt:
        print("Interrupted by Ctrl-C.", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        print(f"Removed {plural(num_removed, 'run')}, {size_text(num_bytes)}.")
    return 0 if num_removed == len(found) else EXIT_FAILED


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
