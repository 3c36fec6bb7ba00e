"""Composes the configuration of some overrides, with Hydra as a library, and parses overrides."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from lockstep.config.errors import Error, one_line
from lockstep.runs.naming import hydra_text
from lockstep.system.trees import Tree

# With libyaml, reading a config.yaml takes 1.5 ms instead of 11 ms. OmegaConf and Hydra use it,
# too.
if yaml.__with_libyaml__:
    yaml.SafeLoader = yaml.CSafeLoader  # pyright: ignore[reportAttributeAccessIssue]


_PACKAGE = Path(__file__).parents[2]
# A wheel contains conf/ inside the package, and a checkout contains it next to src/.
CONF = next(path for path in (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf") if path.is_dir())
# This is the JSON schema of the files in conf/, written by tests/support/schema.py.
SCHEMA = CONF / "lockstep.schema.json"


# The options of these groups override those of config.yaml, and its values.
LAST = ("experiment", "debug")
# Hydra raises these errors for a choice or a file.
REFUSALS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)
SEARCH_PATH = "hydra.searchpath"


class Source(NamedTuple):
    """Folder and name of the primary configuration, and a folder with more options.

    Lockstep's CONF is always added.
    """

    conf: Path = CONF
    name: str = "config"
    added: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders with options, in the order in which Hydra searches them."""
        return tuple(
            dict.fromkeys(path for path in (self.conf, CONF, self.added) if path is not None)
        )


DEFAULT = Source()


def source_of(project: Path) -> Source:
    """Return the `conf` folder of a project as the source, or Lockstep's own."""
    return Source(project / "conf") if (project / "conf").is_dir() else DEFAULT


def compose_config(
    overrides: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False
) -> DictConfig:
    """Compose the configuration of some overrides.

    `with_hydra` keeps the section `hydra`.
    """
    lines = [line for line in overrides if parse_override(line).key_or_group != SEARCH_PATH]
    with start_hydra(source, _typed_folders(overrides)) as config_name:
        cfg = compose(config_name, lines, return_hydra_config=with_hydra)
    if with_hydra:
        cfg.hydra.job.config_name = source.name
    return cfg


def _typed_folders(overrides: Iterable[str]) -> list[str]:
    """Return the folders with more options that overrides of `SEARCH_PATH` name."""
    values = [
        parse_override(line).value()
        for line in overrides
        if parse_override(line).key_or_group == SEARCH_PATH
    ]
    return [str(folder) for value in values if isinstance(value, list) for folder in value]


def is_group(key: str, overrides: Iterable[str], source: Source) -> bool:
    """Return whether Hydra finds options for `key` in its search path.

    Overrides may extend the search path.
    """
    with start_hydra(source, _typed_folders(overrides)) as config_name:
        loader = GlobalHydra.instance().config_loader()
        return bool(loader.get_group_options(key, config_name=config_name))


def apply_value(cfg: DictConfig, override: Override) -> None:
    """Change, add or remove one value of a composed configuration, as Hydra applies the override.

    Raises HydraException, OmegaConfBaseException or ValueError, and then leaves `cfg` as it was.
    """
    key, value = override.key_or_group, override.value()
    parent_key, _, child_key = key.rpartition(".")
    parent = OmegaConf.select(cfg, parent_key) if parent_key else cfg
    if override.package is not None:
        raise ConfigCompositionException(f"no group has the name {key}")
    if override.is_delete():
        current_value = OmegaConf.select(cfg, key, throw_on_missing=False)
        if current_value is None or value not in (None, current_value):
            raise ConfigCompositionException(f"{key} is {current_value}")
        with open_dict(cfg):
            del parent[child_key]
        return
    if override.is_add() and not isinstance(value, (dict, list)):
        current_value = OmegaConf.select(cfg, key, throw_on_missing=False)
        if current_value is not None:
            hint = f"replace it with +{override.input_line}"
            raise ConfigCompositionException(f"{key} is {current_value} already, {hint}")
    is_added = override.is_add() or override.is_force_add()
    if not is_added and not OmegaConf.is_config(parent):
        raise ConfigKeyError(key)
    OmegaConf.update(cfg, key, value, merge=True, force_add=is_added)


@contextlib.contextmanager
def start_hydra(source: Source, folders: Sequence[str] = ()) -> Iterator[str]:
    """Let Hydra compose from `source`, and from more folders, in this block.

    Yields the name of the primary file.
    """
    with initialize_config_dir(str(source.conf.resolve()), "train", version_base="1.3"):
        yield _store_primary(source, folders)


def _store_primary(source: Source, folders: Sequence[str]) -> str:
    """Store the primary configuration in this process, and return its name.

    It contains the file of `source`, followed by the options of `LAST`. Of several overrides of a
    group, Hydra takes the first that it reads. It reads a file before the files that it includes,
    and a defaults list from its end. An experiment therefore has to come after the project's file,
    in a list around both. Hydra reads the search path only in the outermost file.
    """
    content = _read_primary(source)
    if not isinstance(content, dict) or not isinstance(content.get("defaults", []), list):
        # Hydra reports what is wrong.
        return source.name
    last_options: dict[str, Any] = dict.fromkeys(LAST)
    entries: list[Any] = []
    for entry in content.get("defaults", []):
        group, option = "", None
        if isinstance(entry, dict) and entry:
            group, option = next(iter(entry.items()))
        group_name = str(group).split(" ")[-1].removeprefix("/")
        if group_name in last_options:
            last_options[group_name] = option
        else:
            entries.append(entry)
    own_folders = (content.get("hydra") or {}).pop("searchpath", None) or []
    source_urls = [f"file://{path.resolve()}" for path in source.folders[1:]]
    inner_name, outer_name = f"defaults of {source.name}", f"{source.name} and its experiment"
    last_entries = [{group: option} for group, option in last_options.items()]
    outer_content = {
        "defaults": ["_self_", inner_name, *last_entries],
        "hydra": {"searchpath": [*source_urls, *own_folders, *folders]},
    }
    ConfigStore.instance().store(inner_name, {**content, "defaults": entries})
    ConfigStore.instance().store(outer_name, outer_content)
    return outer_name


def _read_primary(source: Source) -> Any:
    """Return the content of the primary file, or None if it cannot be read."""
    paths = (folder / f"{source.name}.yaml" for folder in source.folders)
    path = next(filter(Path.is_file, paths), None)
    # Hydra reports the error.
    with contextlib.suppress(OSError, YAMLError):
        if path is not None:
            return OmegaConf.to_container(OmegaConf.load(path))
    return None


def plain_tree(cfg: DictConfig) -> tuple[Tree, dict[str, Error]]:
    """Return the resolved values without the section `hydra`, and the errors of unresolved values.

    The errors are listed by key. An unresolved value is None.
    """
    reasons: dict[str, Error] = {}

    def value_at(node: DictConfig | ListConfig, key: Any, path: str) -> Any:
        if OmegaConf.is_missing(node, key):
            reasons[path] = Error("missing", path, "has no value", f"add {path}=...")
            return None
        try:
            return value_of(node[key], path)
        except (OmegaConfBaseException, RecursionError) as error:
            raw_values: Any = OmegaConf.to_container(node, resolve=False)
            reasons[path] = Error(
                "missing", f"{path}={raw_values[key]}", "cannot be resolved", one_line(error)
            )
            return None

    def value_of(value: Any, path: str) -> Any:
        if isinstance(value, DictConfig):
            keys = [key for key in value if path or key != "hydra"]
            return {str(key): value_at(value, key, f"{path}.{key}".lstrip(".")) for key in keys}
        if isinstance(value, ListConfig):
            return [value_at(value, i, path) for i in range(len(value))]
        return value

    return value_of(cfg, ""), reasons


def groups(*folders: Path) -> dict[str, list[str]]:
    """Return the options of every configuration group in some folders.

    Hydra's own groups are left out.
    """
    options_by_group: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra/"):
                options_by_group.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(options_by_group.items())}


@cache
def parse_override(line: str) -> Override:
    """Parse one override.

    A plain value that Hydra cannot read becomes a quoted string. A comma in front of a path that
    begins with ~, / or $ separates the values of a sweep. Raises HydraException.
    """
    if line.startswith("="):
        # Hydra takes the empty string for a key.
        raise OverrideParseException(line, "no key")
    parser = OverridesParser.create()
    try:
        return parser.parse_override(line)
    except HydraException:
        key, _, value = line.partition("=")
        if not value or (value[0] == "[" and value[-1] == "]") or value[0] in "{'\"":
            raise
        values = map(hydra_text, re.split(r",(?=[~/$])", value))
        return parser.parse_override(f"{key}={','.join(values)}")
