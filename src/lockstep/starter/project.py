"""Creates a project from the files next to this module, which are the project `flowers`."""

import importlib.metadata
import importlib.util
import json
import keyword
import os
import secrets
import shutil
from pathlib import Path

import lockstep
from lockstep.config.composing.compose import SCHEMA
from lockstep.runs.naming import display_path

FILES = Path(__file__).parent / "files"
NAME = "flowers"  # The name of the new project replaces it.
DISTRIBUTION = "lockstep-vision"
REQUIREMENT = f'"{DISTRIBUTION}"'  # This is the requirement in its pyproject.toml.


def create(path: Path) -> str:
    """Create a project at an absolute `path`, and return its requirement of Lockstep.

    If this fails, nothing is created. Raises ValueError.
    """
    project_name = path.name
    package = project_name.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package) or package != package.lower():
        raise ValueError(
            f"{project_name!r} is not a valid package name: use lower-case letters, digits and _, "
            "as in flowers."
        )
    if importlib.util.find_spec(package) is not None:
        raise ValueError(
            f"a module {package} exists already, and the project would shadow it: use another name."
        )
    if path.exists():
        raise ValueError(f"{display_path(path)} exists: use another name, or another folder.")
    requirement = _requirement()
    temporary_path = path.with_name(f".{project_name}.{secrets.token_hex(4)}")
    try:
        for source in sorted(FILES.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                target = temporary_path / str(source.relative_to(FILES)).replace(NAME, package)
                target.parent.mkdir(parents=True, exist_ok=True)
                content = source.read_text("utf-8").replace(NAME, package)
                target.write_text(content.replace(REQUIREMENT, json.dumps(requirement)), "utf-8")
        shutil.copyfile(SCHEMA, temporary_path / "conf" / SCHEMA.name)
        os.rename(temporary_path, path)
    except OSError as error:
        raise ValueError(
            f"{display_path(path)} cannot be created: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(temporary_path, ignore_errors=True)
    return requirement


def _requirement() -> str:
    """Return the requirement for this Lockstep.

    It is the origin of Lockstep if pip recorded one, or else its version.
    """
    try:
        direct_url = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        direct_url = None
    if direct_url is None:
        major, minor, *_ = lockstep.__version__.split(".")
        return f"{DISTRIBUTION}>={lockstep.__version__},<{major}.{int(minor) + 1}"
    # https://packaging.python.org/en/latest/specifications/direct-url/
    origin = json.loads(direct_url)
    vcs = origin.get("vcs_info")
    url = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else origin["url"]
    return f"{DISTRIBUTION} @ {url}"
