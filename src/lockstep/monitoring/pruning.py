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
    """A run that may go: its size, whether it has a checkpoint, the runs inside it, and the time of its files."""

    run: Listed
    num_bytes: int
    has_checkpoint: bool
    nested: tuple[Path, ...]
    stamp: tuple[int, ...]

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
    """A look into a run folder. Links are not followed; a file of two names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    has_checkpoint, nested = False, []
    path = run.discovered.folder.path
    for where, folders, files in os.walk(path):
        here = RunFolder(Path(where))
        marks = {here.lock_file.name, here.status_file.name, here.overrides.name, here.checkpoints.name}
        if here.path != path and here.config.name in files and marks & {*folders, *files}:
            nested.append(here.path)
        for name in files:
            has_checkpoint = has_checkpoint or name.endswith(".ckpt")
            with contextlib.suppress(OSError):
                stat = os.lstat(here.path / name)
                sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return Candidate(run, sum(sizes.values()), has_checkpoint, tuple(nested), _stamp(run.discovered.folder))


def _stamp(folder: RunFolder) -> tuple[int, ...]:
    """Another one once the run has been gone on with."""
    times = []
    for name in (folder.config.name, folder.status_file.name):
        with contextlib.suppress(OSError):
            times.append(os.lstat(folder.path / name).st_mtime_ns)
    return tuple(times)


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
    if facts["state"] == "no signal" and not is_named and _is_elsewhere(facts.get("host")):
        host = printable(facts["host"])
        return f"it ran on {host}, which cannot be asked from here: --state no-signal, if you know that it is over"
    return ""


def _is_elsewhere(host: str | None) -> bool:
    return host is not None and host != socket.gethostname()


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
            if now.stamp != candidate.stamp:
                return "it was gone on with meanwhile"
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
    for path in removed:
        for above in path.parents:
            if not above.is_relative_to(root) or above == root:
                break
            try:
                above.rmdir()
            except OSError:
                break
