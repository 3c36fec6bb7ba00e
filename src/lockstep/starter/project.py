"""Makes a project of one's own from the files beside this module, which are a project already: that of `flowers`."""

import importlib.metadata
import importlib.util
import json
import keyword
import os
import secrets
import shutil
from pathlib import Path

import lockstep
from lockstep.runs.naming import shown

FILES = Path(__file__).parent / "files"
NAME = "flowers"  # of the project in FILES, wherever the name of the new one has to stand
REQUIREMENT = '"lockstep"'  # in its pyproject.toml


def create(path: Path) -> str:
    """Make a project at an absolute `path`, whose last part is its name. Returns what its pyproject.toml asks for.

    The folder is there whole or not at all. Raises ValueError where it cannot be made.
    """
    name = path.name
    package = name.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package) or package != package.lower():
        raise ValueError(f"{name!r} is no name of a package: take lower-case letters, digits and _, as in flowers.")
    if importlib.util.find_spec(package) is not None:
        raise ValueError(f"there is a module {package} already, which the project would hide: take another name.")
    if path.exists():
        raise ValueError(f"{shown(path)} is there already: take another name, or another folder.")
    requirement = _requirement()
    new = path.with_name(f".{name}.{secrets.token_hex(4)}")
    try:
        for source in sorted(FILES.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = new / str(source.relative_to(FILES)).replace(NAME, package)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = source.read_text("utf-8").replace(NAME, package)
                target.write_text(text.replace(REQUIREMENT, json.dumps(requirement)), "utf-8")
        os.rename(new, path)
    except OSError as error:
        raise ValueError(f"{shown(path)} cannot be made: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return requirement


def _requirement() -> str:
    """What pip installs this Lockstep by: from where it was installed, else its version."""
    try:
        text = importlib.metadata.distribution("lockstep").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    if text is None:
        major, minor, *_ = lockstep.__version__.split(".")
        return f"lockstep>={lockstep.__version__},<{major}.{int(minor) + 1}"
    origin = json.loads(text)  # https://packaging.python.org/en/latest/specifications/direct-url/
    vcs = origin.get("vcs_info")
    url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
    return f"lockstep @ {url}"
