"""Where the modules are that a configuration names beside those that are installed.

They lie in the folder of the project, which is that of train.py or the one in which `lockstep` was typed, in its `src`,
in PYTHONPATH, or in the folder in which train.py was started. A run records these folders: what Lockstep itself starts
finds the same modules there, as does a command of another folder that trusts the run.
"""

import os
import sys
from pathlib import Path
from typing import NamedTuple

import lockstep
from lockstep.config import signatures
from lockstep.config.errors import ConfigError
from lockstep.config.schema import Config
from lockstep.config.storage import to_tree
from lockstep.config.targets import called
from lockstep.runs import naming
from lockstep.runs.folder import RunFolder
from lockstep.system import processes


class Project(NamedTuple):
    """Folders of modules: `modules` are searched before what is installed, `started_in` after it."""

    modules: tuple[str, ...]
    started_in: tuple[str, ...]

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of both kinds, in the order in which they are searched."""
        return self.modules + self.started_in


def enter(folder: Path, run: RunFolder | None = None) -> None:
    """Have this process find modules in a project's `folder`, and in the current folder what is nowhere else.

    Not where Python itself was told to look in neither (PYTHONSAFEPATH). Raises ConfigError where there is no current
    folder, or one of the two is in the folder of a `run` that is not trusted.
    """
    started_in = current()
    if run is not None and any(path.resolve().is_relative_to(run.path) for path in (folder, started_in)):
        raise ConfigError([f"this is typed inside of the run {run.path}, where its files are modules: {naming.TRUST}"])
    if not processes.is_safe_path:
        _search(Project(_modules(folder), (str(started_in),)), after=0)


def current() -> Path:
    """The current folder, which is the project of what is no train.py. Raises ConfigError where it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError([f"the current folder is gone ({error.strerror}): start this in another one"]) from error


def root() -> Path:
    """The folder of the project, after `enter` or `use`."""
    if not processes.is_safe_path:
        return Path(sys.path[0])
    script = Path(sys.argv[0])
    return script.resolve().parent if script.suffix == ".py" else Path.cwd()


def here() -> Project:
    """The folders of this command, after `enter`."""
    named = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if processes.is_safe_path:
        return Project(_resolved(named), ())
    return Project(_resolved([*_modules(root()), *named]), _resolved([os.getcwd()]))


def record(folder: RunFolder) -> None:
    """Write down for a run the folders of this command."""
    folder.note(project=here()._asdict())


def record_copy(folder: RunFolder, root: Path, copy: Path) -> None:
    """Write down for a run the folders of this command; for those at or below `root` those of its `copy`."""

    def all_in_copy(folders: tuple[str, ...]) -> list[str]:
        return list(dict.fromkeys(in_copy(Path(path)) for path in folders))

    def in_copy(path: Path) -> str:
        copied = copy / path.relative_to(root) if path.is_relative_to(root) else None
        if copied is None or not copied.is_dir():
            return str(path)
        return os.path.relpath(copied, folder.path)  # the two may move together

    mine = here()
    folder.note(project={"modules": all_in_copy(mine.modules), "started_in": all_in_copy(mine.started_in)})


def use(folder: RunFolder, config: Config, *, is_last: bool = False) -> None:
    """Have this process find the modules of a run, before all others unless it `is_last`.

    Raises ConfigError, which names the folders, where one of the configuration's packages is in none of them.
    """
    recorded = _recorded(folder)
    _search(recorded, after=len(sys.path) if is_last else 0)
    if not recorded.folders:
        return  # an earlier version made the run
    errors = []
    for key, target in called(to_tree(config)):
        package = target.partition(".")[0]
        if not signatures.is_there(package):
            error = f"{key}={target}: there is no package {package!r} in {_told(recorded)}, where the run had"
            errors.append(f"{error} its modules: start this command in the folder that holds {package} now")
    if errors:
        raise ConfigError(errors)


def found(folder: RunFolder, config: Config) -> Config:
    """The configuration of a run, whose data, where not in the current folder, is found in its project."""
    recorded, data = _recorded(folder).folders, config.data
    places: dict[str, str] = {}
    for key in ("root", "file"):
        path = data.arguments().get(key)
        if isinstance(path, str) and "://" not in path and not Path(path).expanduser().exists():
            there = (os.path.join(base, path) for base in recorded if os.path.exists(os.path.join(base, path)))
            places |= {key: next(there, path)}
    return config.model_copy(update={"data": data.model_copy(update=places)})


def _modules(folder: Path) -> tuple[str, ...]:
    """Where the modules of a project are: its folder, and its `src` unless that is where Lockstep itself comes from."""
    source = folder / "src"
    is_ours = source.is_dir() and source.samefile(Path(lockstep.__file__).parents[1])
    return (str(folder), str(source)) if source.is_dir() and not is_ours else (str(folder),)


def _search(project: Project, *, after: int) -> None:
    """Put the folders that exist into the search path of Python, the first ones behind so many entries."""
    modules, started_in = (filter(os.path.isdir, folders) for folders in project)
    sys.path[:] = dict.fromkeys([*sys.path[:after], *modules, *sys.path[after:], *started_in])


def _recorded(folder: RunFolder) -> Project:
    """What is written down for a run, nothing for a run of an earlier version. Raises ConfigError."""
    try:
        kept = folder.read_project()
        modules, started_in = ([os.fspath(path) for path in kept.get(name, ())] for name in Project._fields)
    except (OSError, TypeError, ValueError) as error:
        raise ConfigError([f"{folder.facts_file} cannot be read: {error}"]) from error
    base = folder.path.resolve()
    return Project(*(tuple(os.path.normpath(base / path) for path in paths) for paths in (modules, started_in)))


def _resolved(folders: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))


def _told(project: Project) -> str:
    """The folders for a person, with those that are gone."""
    paths = dict.fromkeys(project.folders)
    return ", ".join(path if os.path.isdir(path) else f"{path} (the folder is gone)" for path in paths)
