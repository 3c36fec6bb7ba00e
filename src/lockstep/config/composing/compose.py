"""Composes the configuration of a command line by Hydra, and parses its overrides."""

import contextlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override
from yaml import YAMLError

from lockstep.config.errors import ConfigError, Error, one_line
from lockstep.config.schema.key_scopes import EVERYWHERE
from lockstep.runs.naming import hydra_text

if yaml.__with_libyaml__:  # a config.yaml takes 1.5 ms with it, 11 in Python; OmegaConf and Hydra use it, too
    yaml.SafeLoader = yaml.CSafeLoader  # pyright: ignore[reportAttributeAccessIssue]


_PACKAGE = Path(__file__).parents[2]
CONF = next(path for path in (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf") if path.is_dir())  # of a wheel; of src/


LAST = ("experiment", "debug")  # groups whose options override those of config.yaml, and its values
REFUSALS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)  # raised by Hydra for a choice or a file
AROUND = " and its experiment"  # end of the name of a stored configuration


class Source(NamedTuple):
    """Folder and name of the primary configuration, and a folder with more options. Lockstep's CONF is always added."""

    conf: Path = CONF
    name: str = "config"
    added: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders with options, in the order in which Hydra searches them."""
        return tuple(dict.fromkeys(path for path in (self.conf, CONF, self.added) if path is not None))


DEFAULT = Source()


def source_of(project: Path) -> Source:
    """Return the `conf` folder of a project, or Lockstep's own."""
    return Source(project / "conf") if (project / "conf").is_dir() else DEFAULT


class Defaults(SearchPathPlugin):
    """Adds Lockstep's configuration to Hydra's search path, after that of the project."""

    @override
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        path = f"file://{CONF}"
        if all(element.path != path for element in search_path.get_path()):
            search_path.append(provider="lockstep", path=path)


def search_defaults() -> None:
    """Register `Defaults` only in this process: other Hydra applications of the environment do not get it."""
    Plugins.instance().register(Defaults)


def compose_config(overrides: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False) -> DictConfig:
    """Compose the configuration of some overrides; `with_hydra` adds the section `hydra`."""
    search_defaults()
    search = [f"hydra.searchpath=[file://{source.added.resolve()}]"] if source.added is not None else []
    name = primary(source)
    with initialize_config_dir(config_dir=str(source.conf.resolve()), version_base="1.3"):
        return compose(name, [*search, *overrides], return_hydra_config=with_hydra)


def primary(source: Source) -> str:
    """Return the name of the primary configuration, stored in this process: the file of `source`, then `LAST`.

    Of several overrides of a group, Hydra takes the first that it reads. It reads a file before what the file includes,
    and a defaults list from its end. So an experiment has to come after the project's file, in a list around both.
    """
    tree: Any = None
    with contextlib.suppress(StopIteration, OSError, YAMLError):  # reported by Hydra
        tree = OmegaConf.load(
            next(path for folder in source.folders if (path := folder / f"{source.name}.yaml").is_file())
        )
    content: Any = OmegaConf.to_container(tree) if isinstance(tree, DictConfig) else {}
    listed = content.get("defaults", [])
    if not isinstance(tree, DictConfig) or not isinstance(listed, list):
        return source.name
    last: dict[str, Any] = dict.fromkeys(LAST)
    kept: list[Any] = []
    for entry in listed:
        group, option = next(iter(entry.items())) if isinstance(entry, dict) and entry else ("", None)
        name = str(group).split(" ")[-1].removeprefix("/")
        if name in last:
            last[name] = option
        else:
            kept.append(entry)
    inner, outer = f"defaults of {source.name}", f"{source.name}{AROUND}"
    around: dict[str, Any] = {"defaults": ["_self_", inner, *({group: option} for group, option in last.items())]}
    with open_dict(tree):
        tree.defaults = kept
    if (search := OmegaConf.select(tree, "hydra.searchpath")) is not None:  # Hydra reads it only in the outermost
        del tree.hydra.searchpath
        around["hydra"] = {"searchpath": search}
    ConfigStore.instance().store(inner, tree)
    ConfigStore.instance().store(outer, around)
    return outer


def plain_tree(cfg: DictConfig) -> tuple[dict[str, Any], dict[str, Error | None]]:
    """Return the resolved values of a configuration, and by key the error why one is None instead.

    There is no error for `${hydra:...}` outside of a job: it has a value, and is checked, when the job starts.
    """
    reasons: dict[str, Error | None] = {}

    def value_at(node: DictConfig | ListConfig, key: Any, path: str) -> Any:
        if OmegaConf.is_missing(node, key):
            reasons[path] = Error("missing", path, "has no value", f"add {path}=...")
            return None
        try:
            return value_of(node[key], path)
        except (OmegaConfBaseException, RecursionError) as error:
            raw: Any = OmegaConf.to_container(node, resolve=False)
            text = str(raw[key])
            is_later = "${hydra:" in text and not HydraConfig.initialized()
            reasons[path] = (
                None if is_later else Error("missing", f"{path}={text}", "cannot be resolved", one_line(error))
            )
            return None

    def value_of(value: Any, path: str) -> Any:
        if isinstance(value, DictConfig):
            return {str(key): value_at(value, key, f"{path}.{key}".lstrip(".")) for key in value}
        if isinstance(value, ListConfig):
            return [value_at(value, i, path) for i in range(len(value))]
        return value

    tree = value_of(cfg, "")
    tree.pop("hydra", None)
    return tree, reasons


def groups(*folders: Path) -> dict[str, list[str]]:
    """Return the options of every configuration group in some folders, without Hydra's own groups."""
    options_by_group: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.rglob("*.yaml"):
            group = file.parent.relative_to(folder).as_posix()
            if group != "." and not group.startswith("hydra/"):
                options_by_group.setdefault(group, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(options_by_group.items())}


@cache
def parse_override(text: str) -> Override:
    """Parse one override; a plain value that Hydra cannot read becomes a quoted text. Raises HydraException.

    A comma in front of a path that begins with ~, / or $ separates the values of a sweep.
    """
    if text.startswith("="):
        raise OverrideParseException(text, "no key")  # Hydra takes the empty text for a key
    parser = OverridesParser.create()
    try:
        return parser.parse_override(text)
    except HydraException:
        key, _, value = text.partition("=")
        if not value or (value[0] == "[" and value[-1] == "]") or value[0] in "{'\"":
            raise
        values = map(hydra_text, re.split(r",(?=[~/$])", value))
        return parser.parse_override(f"{key}={','.join(values)}")


def hydra_value(key: str, texts: Sequence[str], source: Source) -> str | None:
    """Return the value of a key of Hydra, None if these overrides leave it to conf/lockstep.yaml. Raises ConfigError.

    Overrides with several values, those of a sweep, are left out.
    """
    parsed_overrides = [parse_override(text) for text in texts]
    may_differ = any(o.is_hydra_override() or o.key_or_group in EVERYWHERE for o in parsed_overrides)
    if not may_differ and source == DEFAULT:
        return None  # composing takes 0.1 s
    kept = [override.input_line or "" for override in parsed_overrides if not override.is_sweep_override()]
    try:
        value = OmegaConf.select(compose_config(kept, source, with_hydra=True), key)
    except REFUSALS as error:
        raise ConfigError(Error("failed", key, f": {one_line(error)}")) from error
    return None if value in (None, ".") else str(value)
