"""Finds modules that are not installed in the folders of a run's project.

These are the folder of the project (of train.py, or the current one for `lockstep`), its `src`,
PYTHONPATH, and the current folder. A run records them for its workers, and for commands in other
folders that trust the run.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import lockstep
from lockstep.config.checks import signatures
from lockstep.config.errors import Error, Errors, config_error, refuse
from lockstep.config.saved.config_file import to_tree
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.target_sections import named_callables
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.system import processes
from lockstep.system.provenance import project_root


class Project(NamedTuple):
    """Folders of modules.

    `modules` are searched before installed packages, and `started_in` after them.
    """

    modules: tuple[str, ...]
    started_in: tuple[str, ...]


def enter(folder: Path, run: RunFolder | None = None) -> None:
    """Let this process find modules in a project's `folder` and in the current folder.

    The current folder is searched after all others. Does nothing with PYTHONSAFEPATH. Raises
    ConfigError if there is no current folder, or if one of the two is inside of a `run` that is not
    trusted.
    """
    started_in = current()
    if run is not None and any(
        path.resolve().is_relative_to(run.path) for path in (folder, started_in)
    ):
        raise config_error(
            "untrusted", "the current folder", f"is inside the run {run.path}", naming.TRUST_HINT
        )
    if not processes.is_safe_path:
        _search(Project(_modules(folder), (str(started_in),)), after=0)


def current() -> Path:
    """Return the current folder.

    Raises ConfigError if it was removed.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise config_error(
            "missing", "the current folder", "was removed", "change to another one"
        ) from error


def current_project() -> Project:
    """Return the folders of this command, after `enter`."""
    path_folders = [
        folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder
    ]
    if processes.is_safe_path:
        return Project(_resolve_folders(path_folders), ())
    return Project(
        _resolve_folders([*_modules(project_root()), *path_folders]),
        _resolve_folders([os.getcwd()]),
    )


def record(folder: RunFolder) -> None:
    folder.claim(project=current_project()._asdict())


def record_copy(folder: RunFolder, root: Path, copy: Path) -> None:
    """Record the folders of this command for a run, after those below the `copy` of its `root`.

    A package that is not in the copy, because git ignores it, is found where it is.
    """

    def path_in_copy(path: str) -> str:
        if not Path(path).is_relative_to(root):
            return path
        copy_path = copy / Path(path).relative_to(root)
        if not copy_path.is_dir():
            return path
        return os.path.relpath(copy_path, folder.path)  # The copy and the run may move together.

    project = current_project()
    modules, started_in = (map(path_in_copy, paths) for paths in project)
    original_folders = (*started_in, *project.modules, *project.started_in)
    folder.claim(
        project={
            "modules": list(dict.fromkeys(modules)),
            "started_in": list(dict.fromkeys(original_folders)),
        }
    )


def use(folder: RunFolder, config: Config, *, is_last: bool = False) -> None:
    """Let this process find the modules of a run, before all others unless it `is_last`.

    Raises ConfigError, with the folders, if one of the configuration's packages is in none of them.
    """
    recorded_project = _recorded_project(folder)
    _search(recorded_project, after=len(sys.path) if is_last else 0)
    folders = dict.fromkeys((*recorded_project.modules, *recorded_project.started_in))
    if folders:  # There may be no record.
        refuse(_missing_packages(config, folders))


def _missing_packages(config: Config, folders: Iterable[str]) -> Errors:
    folders_text = ", ".join(
        path if os.path.isdir(path) else f"{path} (which no longer exists)" for path in folders
    )
    for key, target in named_callables(to_tree(config)):
        package = target.partition(".")[0]
        if not signatures.is_there(package):
            yield Error(
                "missing",
                f"{key}={target}",
                f": package {package!r} was not found in {folders_text}, "
                "where the run found its modules",
                f"run this command in the folder that contains {package} now",
            )


def find_data(folder: RunFolder, config: Config) -> Config:
    """Look up relative paths of the data in the project of a run.

    This applies to paths that do not exist in the current folder.
    """
    recorded_project, data = _recorded_project(folder), config.data
    paths: dict[str, str] = {}
    for key in ("root", "file"):
        path = data.arguments().get(key)
        if isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists():
            candidates = (
                os.path.join(base, path)
                for base in (*recorded_project.modules, *recorded_project.started_in)
            )
            paths[key] = next(filter(os.path.exists, candidates), path)
    return config.model_copy(update={"data": data.model_copy(update=paths)})


def _modules(folder: Path) -> tuple[str, ...]:
    """Return a project's folder and its `src`, unless `src` contains Lockstep itself."""
    source = folder / "src"
    if not source.is_dir() or source.samefile(Path(lockstep.__file__).parents[1]):
        return (str(folder),)
    return (str(folder), str(source))


def _search(project: Project, *, after: int) -> None:
    """Add the folders that exist to the search path of Python, the first one at position `after`.

    The folders in `started_in` are added at the end.
    """
    modules, started_in = (filter(os.path.isdir, folders) for folders in project)
    sys.path[:] = dict.fromkeys([*sys.path[:after], *modules, *sys.path[after:], *started_in])


def _recorded_project(folder: RunFolder) -> Project:
    """Return the recorded folders of a run, or no folders if none are recorded.

    Raises ConfigError if the record cannot be read.
    """
    base = folder.path.resolve()
    try:
        record = folder.fact("project") or {}
        return Project(
            tuple(os.path.normpath(base / path) for path in record.get("modules", ())),
            tuple(os.path.normpath(base / path) for path in record.get("started_in", ())),
        )
    except (OSError, TypeError, ValueError) as error:
        raise config_error(
            "damaged", str(folder.facts_file), "cannot be read", str(error)
        ) from error


def _resolve_folders(folders: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))
