"""Hydra composes the configuration of a command line; nothing else in the package asks it to."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from typing_extensions import override

from lockstep.config.errors import one_line
from lockstep.config.schema import Config, section

if yaml.__with_libyaml__:  # a config.yaml takes 1.5 ms of it, 11 of Python; OmegaConf and Hydra, too, look the name up
    yaml.SafeLoader = yaml.CSafeLoader  # pyright: ignore[reportAttributeAccessIssue]


_PACKAGE = Path(__file__).parents[1]
CONF = next(path for path in (_PACKAGE / "conf", _PACKAGE.parents[1] / "conf") if path.is_dir())  # of a wheel; of src/


class Source(NamedTuple):
    """Where configurations come from: the folder and name of the primary one, and a folder that adds to it.

    What is in neither is Lockstep's own, in CONF.
    """

    conf: Path = CONF
    name: str = "config"
    added: Path | None = None

    @property
    def folders(self) -> tuple[Path, ...]:
        """All folders in which options are, the first one in which Hydra finds a file counts."""
        return tuple(dict.fromkeys(path for path in (self.conf, CONF, self.added) if path is not None))


DEFAULT = Source()


def source_of(project: Path) -> Source:
    """Where the configurations of a project come from: its `conf`, where it has one, before Lockstep's own."""
    return Source(project / "conf") if (project / "conf").is_dir() else DEFAULT


class Defaults(SearchPathPlugin):
    """Lets Hydra find Lockstep's own configuration behind that of a project."""

    @override
    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add CONF behind what is there, unless it is there."""
        path = f"file://{CONF}"
        if all(element.path != path for element in search_path.get_path()):
            search_path.append(provider="lockstep", path=path)


def search_defaults() -> None:
    """Have Hydra use `Defaults` in this process, and in no other application of the same environment."""
    Plugins.instance().register(Defaults)


def composed(overrides: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False) -> DictConfig:
    """The configuration of a command line, as Hydra composes it; also Hydra's own part `with_hydra`."""
    search_defaults()
    search = [f"hydra.searchpath=[file://{source.added.resolve()}]"] if source.added is not None else []
    with initialize_config_dir(config_dir=str(source.conf.resolve()), version_base="1.3"):
        return compose(source.name, [*search, *overrides], return_hydra_config=with_hydra)


def plain(cfg: DictConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a composed configuration; None where there is none to have, and by key the reason."""
    reasons: dict[str, str] = {}

    def value_at(node: DictConfig | ListConfig, key: Any, path: str) -> Any:
        if OmegaConf.is_missing(node, key):
            reasons[path] = f"{path} has no value: add {path}=..."
            return None
        try:
            return value_of(node[key], path)
        except (OmegaConfBaseException, RecursionError) as error:
            raw: Any = OmegaConf.to_container(node, resolve=False)
            text = str(raw[key])
            # what Hydra knows of a job is there, and checked, when the job starts
            is_later = "${hydra:" in text and not HydraConfig.initialized()
            reasons[path] = "" if is_later else f"{path}={text} cannot be resolved: {one_line(error)}"
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


def right_part(tree: dict[str, Any], errors: Mapping[str, str]) -> Config:
    """The configuration without its faulty keys, so that the others are checked against each other all the same."""

    def part(value: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {k: part(v, (*path, k)) for k, v in value.items() if ".".join((*path, k)) not in errors}
        section_type = section(tree, path)
        return kept if section_type is None else section_type.model_construct(**kept)

    return part(tree, ())
