"""`lockstep runs --prune`: removes run folders that nobody will miss, after asking."""

import contextlib
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.monitoring import cells
from lockstep.monitoring.selection import REMOVABLE, Listed, Selection
from lockstep.runs.discovery import DiscoveredRun, Watched, look
from lockstep.runs.folder import BENCHMARK, EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, SILENT_S, RunFolder
from lockstep.runs.naming import link_latest, shown
from lockstep.system.terminal import new_table, print_table, printable, terminal
from lockstep.system.wording import plural

LEFTOVERS = ("failed", "no signal", "not started")


@dataclass(frozen=True)
class Candidate:
    """A run that may go: its size, whether it has a checkpoint, the runs inside it, and the time of its status."""

    run: Listed
    num_bytes: int
    has_checkpoint: bool
    nested: tuple[Path, ...]
    changed_ns: int

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return self.run.discovered.folder


def prune(selection: Selection, *, is_sure: bool) -> int:
    """Remove the runs that are asked for, once a person has agreed. Returns the exit code."""
    wrong = [state for state in selection.states if state not in REMOVABLE]
    if wrong:
        known = ", ".join(state.replace(" ", "-") for state in REMOVABLE)
        raise ValueError(f"--prune does not remove runs that are {' or '.join(wrong)}: choose from {known}.")
    # real paths: what the links of a folder name is compared with them
    selection = Selection(selection.root.resolve(), selection.words, selection.states or LEFTOVERS)
    is_named = selection.states is not LEFTOVERS
    going, kept = _chosen(selection.listed(Watched(selection.root, scan_every_s=0.0)), is_named=is_named)
    for run, reason in kept:
        print(f"Left alone: {printable(run.discovered.name)}: {reason}", file=sys.stderr)
    if not going:
        which = "in these states" if is_named else "that ended badly without a checkpoint (others by --state)"
        print(f"Nothing to remove: no run {which} below {printable(shown(selection.root))}.")
        return 0
    return _ask_and_remove(going, selection.root, is_sure=is_sure)


def remove(runs: Sequence[DiscoveredRun], root: Path, *, is_sure: bool) -> int:
    """Remove these runs below `root`, once a person has agreed. Returns the exit code."""
    going = [_candidate(Listed(run, look(run), 0.0)) for run in runs]
    return _ask_and_remove(going, root, is_sure=is_sure)


def _ask_and_remove(going: Sequence[Candidate], root: Path, *, is_sure: bool) -> int:
    _list(going)
    total = f"{plural(len(going), 'run')}, {cells.size(sum(candidate.num_bytes for candidate in going))}"
    if not is_sure:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            print("lockstep: nothing was removed, there is nobody to ask: add --yes to remove these.", file=sys.stderr)
            return EXIT_CONFIG
        try:
            is_sure = input(f"Remove {total}? [y/N] ").strip().casefold() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            print("\nNothing was removed.")
            return EXIT_INTERRUPTED
        if not is_sure:
            print("Nothing was removed.")
            return 0
    return _remove_all(going, root)


# -- what goes ---------------------------------------------------------------------------------------------------------


def _chosen(runs: Sequence[Listed], *, is_named: bool) -> tuple[list[Candidate], list[tuple[Listed, str]]]:
    """What goes, inner runs before those around them, and of the others why not; `is_named`: states were asked for."""
    going: dict[Path, Candidate] = {}
    kept: list[tuple[Listed, str]] = []
    for run in sorted(runs, key=lambda run: len(run.discovered.folder.path.parts), reverse=True):
        candidate = _candidate(run)
        if candidate.has_checkpoint and not is_named:
            continue
        reason = _reason_to_stay(candidate, is_named=is_named)
        staying = [path for path in candidate.nested if path not in going]
        if not reason and staying:
            reason = f"it holds another run, {printable(shown(staying[0]))}"
        if reason:
            kept.append((run, reason))
        else:
            going[candidate.folder.path] = candidate
    return list(going.values()), kept


def _candidate(run: Listed) -> Candidate:
    """A look into a run folder. Links are not followed."""
    folder = run.discovered.folder
    files = [path for path in folder.path.rglob("*") if not path.is_dir()]
    num_bytes = sum(path.lstat().st_size for path in files)
    has_checkpoint = any(path.suffix == ".ckpt" for path in files)
    below = [RunFolder(path.parent) for path in files if path.name == folder.config.name and path != folder.config]
    # a config.yaml alone is of a logger, or of the code of a job
    nested = [inner.path for inner in below if inner.lock_file.exists() or inner.facts_file.exists()]
    return Candidate(run, num_bytes, has_checkpoint, tuple(nested), folder.status_changed_ns())


def _reason_to_stay(candidate: Candidate, *, is_named: bool) -> str:
    folder, facts = candidate.folder, candidate.run.facts
    if folder.job_file.is_file():
        return "it has a job, remove it by lockstep jobs delete"
    if not folder.lock_file.is_file():
        return "no training has ever held it"
    try:
        if folder.is_locked():
            return "it is being trained"
        made = folder.config.stat().st_mtime
    except OSError as error:
        return f"it cannot be read: {type(error).__name__}"
    if (folder.path.parent / BENCHMARK).is_file():
        return "it is part of a benchmark, remove that as a whole"
    if facts["state"] == "not started" and folder.now_s() - made < SILENT_S:
        return "it may be starting on another machine, wait ten minutes"
    host = printable(facts.get("host", ""))
    if facts["state"] == "no signal" and not is_named and host not in ("", socket.gethostname()):
        return f"it ran on {host}, which cannot be asked from here: --state no-signal, if you know that it is over"
    return ""


def _list(going: Iterable[Candidate]) -> None:
    rows = [
        (
            cells.state(candidate.run.facts["state"]),
            candidate.run.discovered.name,
            cells.size(candidate.num_bytes),
            "checkpoint" if candidate.has_checkpoint else "",
        )
        for candidate in going
    ]
    out = terminal()
    print_table(new_table(("state", "run", "size", ""), rows, out, right=("size",)), out)


# -- removing ----------------------------------------------------------------------------------------------------------


def _remove_all(going: Sequence[Candidate], root: Path) -> int:
    removed, is_whole = [], True
    try:
        for candidate in going:
            reason = _removed(candidate)
            if reason:
                is_whole = False
                print(f"Left alone: {printable(candidate.run.discovered.name)}: {reason}", file=sys.stderr)
            else:
                removed.append(candidate)
    except KeyboardInterrupt:
        print("Ended by Ctrl-C.", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        paths = [candidate.folder.path for candidate in removed]
        _repoint(paths)
        _remove_empty(paths, root)
        freed = cells.size(sum(candidate.num_bytes for candidate in removed))
        print(f"Removed {plural(len(removed), 'run')}, {freed}.")
    return 0 if is_whole else EXIT_FAILED


def _removed(candidate: Candidate) -> str:
    """Remove a run, holding its lock; why it stays if it does."""
    try:
        with candidate.folder.lock():
            now = _candidate(candidate.run)
            if now.changed_ns != candidate.changed_ns:
                return "it was resumed meanwhile"
            if now.nested:
                return "it holds another run"
            candidate.folder.remove()
    except BlockingIOError:
        return "it is being trained"
    except OSError as error:
        return f"it could not be removed: {error.strerror or type(error).__name__}"
    return ""


def _repoint(removed: Sequence[Path]) -> None:
    """Where `latest` named a run that is gone, let it name the newest that is left, or nothing."""
    for above in {parent for path in removed for parent in path.parents}:
        link = above / "latest"
        if not link.is_symlink() or Path(os.path.realpath(link)) not in removed:
            continue
        left = Selection(above, (), ()).listed(Watched(above, scan_every_s=0.0))
        if left:
            link_latest(above, left[0].discovered.folder.path)
        else:
            link.unlink()


def _remove_empty(removed: Sequence[Path], root: Path) -> None:
    """Remove the folders between the runs and `root` that hold nothing any more."""
    for above in (above for path in removed for above in path.parents):
        if above != root and above.is_relative_to(root):
            with contextlib.suppress(OSError):  # not empty, or of another user
                above.rmdir()
