"""Composes a configuration and reports everything that is wrong with it, at once, before any work starts.

The only module beside the entry points that knows Hydra and OmegaConf. Imports torch only where the source
text of a `_target_` does not tell its parameters.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from lockstep import allocation, annotations, signatures, workers
from lockstep.data import remote
from lockstep.run_folder import EXIT_CONFIG, write_atomically
from lockstep.schema import (
    ENVIRONMENTS,
    FALLBACK,
    LARGEST,
    NAMED,
    Config,
    Files,
    Open,
    OpenData,
    Target,
    fields,
    kind_of,
    root,
    section,
)

if yaml.__with_libyaml__:  # reads four times as fast; OmegaConf and Hydra look the name up when they read
    yaml.SafeLoader = yaml.CSafeLoader  # pyright: ignore[reportAttributeAccessIssue]

CONF = Path(__file__).parents[2] / "conf"
SUMMARY_NUMBERS = ("training_s", "epoch_s_median", "images_per_s", "parameters", "epochs", "steps")
METRICS = ("train/loss", "train/accuracy", "val/loss", "val/accuracy")
MONITOR = "val/accuracy"  # the result of a run where no checkpoint says another one
# what the training gives to the target of a section: the first parameter by position, others by keyword
BY_POSITION = ("optimizer", "scheduler")
BY_KEYWORD = {"model": ("in_channels", "num_classes"), "scheduler": ("total_steps",), "logger": ("save_dir",)}
# how, where and for whom a run is trained
NOT_OF_A_TRAINING = ("notify", "launcher", "sweep", "search", "cluster", "dry_run")
Groups = Mapping[str, Sequence[str]]  # the options of every configuration group, for the cures


class ConfigError(ValueError):
    """All faults of a configuration, one line each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = list(faults)


class Source(NamedTuple):
    """Where configurations come from: the folder and name of the primary one, and a folder that adds to it."""

    conf: Path = CONF
    name: str = "config"
    added: Path | None = None


DEFAULT = Source()


def exit_with(error: ConfigError) -> NoReturn:
    """Print every fault and leave with the exit code of a bad configuration."""
    for fault in error.faults:
        print(f"config error: {fault}", file=sys.stderr)
    count = len(error.faults)
    print(f"{count} fault{'s' if count > 1 else ''}; nothing was started. See --help.", file=sys.stderr)
    raise SystemExit(EXIT_CONFIG)


# -- from overrides to a checked configuration -------------------------------------------------------------------------


def composed(overrides: Sequence[str], source: Source = DEFAULT, *, with_hydra: bool = False) -> DictConfig:
    """The configuration of a command line, as Hydra composes it; also Hydra's own part `with_hydra`."""
    search = [f"hydra.searchpath=[file://{source.added.resolve()}]"] if source.added is not None else []
    with initialize_config_dir(config_dir=str(source.conf.resolve()), version_base="1.3"):
        return compose(source.name, [*search, *overrides], return_hydra_config=with_hydra)


def checked(cfg: DictConfig, groups: Groups | None = None) -> Config:
    """The typed configuration. Raises ConfigError with every fault the schema, the signatures and the machine show."""
    tree, unresolved = plain(cfg)
    return check_tree(tree, groups, unresolved)


def check_tree(
    tree: dict[str, Any], groups: Groups | None = None, unresolved: Mapping[str, str] | None = None
) -> Config:
    """The typed configuration of a plain tree. Raises ConfigError with all that is wrong, one fault for each key.

    `unresolved` says of keys why they have no value.
    """
    faults = dict(unresolved or {})
    try:
        config = root(tree).model_validate(tree)
    except ValidationError as error:
        for key, fault in _schema_faults(tree, error, groups or {}):
            faults.setdefault(key, fault)
        config = None
    for key, fault in (*_target_faults(tree, groups or {}), *_check_faults(tree)):
        faults.setdefault(key, fault)
    found = [fault for fault in faults.values() if fault]
    if tree.get("resume") is None:  # else these settings meet those of the saved run first
        found += _conflicts(config or _right_part(tree, faults), is_whole=config is not None)
    if found or config is None:
        raise ConfigError(found)
    return config


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


def _right_part(tree: dict[str, Any], faults: Mapping[str, str]) -> Config:
    """The configuration without its faulty keys, so that the others are checked against each other all the same."""

    def part(value: Any, path: tuple[str, ...]) -> Any:
        if not isinstance(value, dict):
            return value
        kept = {k: part(v, (*path, k)) for k, v in value.items() if ".".join((*path, k)) not in faults}
        found = section(tree, path)
        return kept if found is None else found.model_construct(**kept)

    return part(tree, ())


def one_line(error: Exception) -> str:
    """What an error says, without what Hydra and OmegaConf add of their inner life."""
    lines = []
    for line in str(error).strip().splitlines():
        if line.strip().startswith(("full_key:", "object_type=", "Config search path:", "To append to your")):
            break
        lines.append(line)
    return " ".join(" ".join(lines).split())


# -- keys and values against the schema --------------------------------------------------------------------------------


def _schema_faults(tree: dict[str, Any], error: ValidationError, groups: Groups) -> Iterator[tuple[str, str]]:
    """(key, fault) of everything pydantic found; what it says of each member of a union comes more than once."""
    # what is too large for one member of a union is of the wrong kind for another
    for item in sorted(error.errors(include_url=False), key=lambda item: not _is_too_large(item)):
        path = [str(part) for part in item["loc"]]
        if path[0] in FALLBACK:
            del path[1:2]  # the name of a member of the union
        # without the members of a union of types
        depth = 4 if tuple(path[:2]) == ENVIRONMENTS else 3 if path[0] in NAMED else 2
        path = path[: depth if section(tree, path[:1]) is not None or path[0] in NAMED else 1]
        key = ".".join(path)
        if item["type"] == "extra_forbidden":
            yield key, unknown_key(tree, path, groups)
        elif item["type"] == "missing":
            yield key, _missing_key(tree, path, groups)
        elif item["type"] == "union_tag_invalid":
            yield key, f"{key}._target_={tree[key]['_target_']} is of another section: it cannot be the {key}"
        else:
            value = at(tree, path)
            if _is_too_large(item):
                yield key, f"{key}={shown(value)} is too large: {LARGEST:,} at most"
            is_number_for_text = item["type"] == "string_type" and isinstance(value, int | float)
            cure = f": write \"{key}='{shown(value)}'\"" if is_number_for_text else ""
            yield key, f"{key}={shown(value)} must be {_wanted(tree, path)}{cure}"


def _is_too_large(item: Mapping[str, Any]) -> bool:
    return item.get("ctx", {}).get("le") == LARGEST


def _wanted(tree: dict[str, Any], path: Sequence[str]) -> str:
    found = section(tree, path)
    if found is not None or path[-1] in NAMED:
        with_target = " with _target_" if found is not None and issubclass(found, Target) else ""
        return f"a section of keys{with_target}" + (" or null" if path[0] in NAMED and found is not None else "")
    parent = section(tree, path[:-1])
    assert parent is not None
    return kind_of(fields(parent)[path[-1]])


def shown(value: Any) -> str:
    """A value as it is typed, in quotes where it is a text that looks like something else."""
    if not isinstance(value, str):
        return json.dumps(value, default=str, separators=(",", ":"))
    try:
        is_plain = yaml.safe_load(value) == value
    except yaml.YAMLError:
        is_plain = True
    return value if is_plain else f"'{value}'"


def _missing_key(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> str:
    key = ".".join(path)
    if key in groups:
        return f"{key} is missing: choose {key}=... from {', '.join(groups[key])}"
    if path[0] in NAMED:
        return f"{path[0]}.{path[1]} has no _target_" + question(_meant(tree, path[:2], groups), "add one")
    return f"{key} is missing: add +{key}=... ({_wanted(tree, path)})"


def unknown_key(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> str:
    """The fault of a key nothing reads: the names it may have been meant for, or those there are."""
    parent = at(tree, path[:-1])
    target = parent.get("_target_") if isinstance(parent, dict) else None
    owner = target.rpartition(".")[2] if isinstance(target, str) else ".".join(path[:-1])
    names = [name for name in legal_names(tree, path[:-1], groups) or () if not name.startswith("_")]
    known = f"{owner} has {', '.join(names)}" if owner and names else "remove it; --help lists the keys"
    return f"unknown key {'.'.join(path)}" + question(_meant(tree, path, groups), known)


def legal_names(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> Sequence[str] | None:
    """The names of keys that may stand below `path`; None where any may."""
    if not path:
        own = fields(root(tree))
        return [*own, *(group for group in groups if group not in own and "/" not in group)]
    value = at(tree, path)
    if len(path) == 1 and path[0] in NAMED:
        there = value if isinstance(value, dict) else {}
        return [name for name, child in there.items() if child is None or at(child, ["_target_"]) is not None]
    found = section(tree, path)
    if found is not None and found.model_config.get("extra") != "allow":
        return list(fields(found))
    target = value.get("_target_") if isinstance(value, dict) else None
    if not isinstance(target, str):
        return None if isinstance(value, dict) and found is None else list(fields(found)) if found else []
    try:
        signature = signatures.find(target)
    except signatures.Missing:
        return None
    if signature is None or signature.takes_any:
        return None
    supplied = _supplied(path, signature)
    names = [*(fields(found) if found else ()), *(name for name in signature.names if name not in supplied)]
    return list(dict.fromkeys(names))


def _meant(tree: dict[str, Any], path: Sequence[str], groups: Groups) -> list[str]:
    """The keys that are likely meant by an unknown one: a like name in its section, else the same name elsewhere."""
    for depth, name in enumerate(path):
        names = legal_names(tree, path[:depth], groups)
        if names is None:
            return []
        if name not in names or depth == len(path) - 1:
            meant = [other for other in near(name, names, 2) if other != name]
            if meant:
                return [".".join([*path[:depth], other, *path[depth + 1 :]]) for other in meant]
            break
    keys = {key: key.rpartition(".")[2] for key, _ in leaves(tree, "") if "." in key and not key.startswith(NAMED)}
    same = near(path[-1], set(keys.values()), cutoff=0.75)
    return [key for key, name in keys.items() if name in same and key != ".".join(path)][:2]


def leaves(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything that is no section, with a prefix and dots."""
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}".lstrip("."))
    else:
        yield prefix, tree


def near(name: str, names: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """The names that are most like one; upper case counts as lower where none is like it."""
    from difflib import get_close_matches  # 10 ms that a good configuration does not need

    names = list(names)
    by_lower = {other.lower(): other for other in names}
    found = get_close_matches(name, names, count, cutoff)
    return found or [by_lower[other] for other in get_close_matches(name.lower(), by_lower, count, cutoff)]


def question(meant: Sequence[str], otherwise: str) -> str:
    """The end of a fault: the names that may have been meant, else what there is to do."""
    return f": did you mean {' or '.join(meant)}?" if meant else f": {otherwise}"


def at(tree: Any, path: Iterable[str]) -> Any:
    """The value at a path, None where there is none."""
    for part in path:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


# -- targets against signatures ----------------------------------------------------------------------------------------


def targets(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every section with a `_target_`, nested ones too."""
    if isinstance(value, dict):
        if isinstance(value.get("_target_"), str):
            yield path, value
        for key, child in value.items():
            yield from targets(child, (*path, key))
    elif isinstance(value, list):
        for i, child in enumerate(value):
            yield from targets(child, (*path, str(i)))


def called(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, dotted name) of all that a configuration calls: every `_target_`, and the `_check_` of the data."""
    for path, value in targets(tree):
        for name in ("_target_", "_check_"):
            if isinstance(value.get(name), str):
                yield ".".join([*path, name]), value[name]


def _supplied(path: Sequence[str], signature: signatures.Signature) -> tuple[str, ...]:
    """The parameters that the training gives to the target at `path`."""
    if len(path) != (2 if path[0] in NAMED else 1):
        return ()
    return (*(signature.names[:1] if path[0] in BY_POSITION else ()), *BY_KEYWORD.get(path[0], ()))


def _target_faults(tree: dict[str, Any], groups: Groups) -> Iterator[tuple[str, str]]:
    """(key, fault) of every parameter that is unknown to its target, of another type, missing, or not to be set."""
    for path, value in targets(tree):
        found = section(tree, path)
        if found is not None and found.model_config.get("extra") != "allow":
            continue  # the schema has said it all
        key, target = ".".join(path), value["_target_"]
        name = target.rpartition(".")[2]
        try:
            signature = signatures.find(target)
        except signatures.Missing as error:
            yield f"{key}._target_", f"{key}._target_={target}: {error}" + _cure(target, error)
            continue
        if signature is None:
            continue
        supplied = _supplied(path, signature)
        own = fields(found) if found is not None else {}
        given = [k for k in value if not k.startswith("_") and k not in own]
        for k in given:
            if k in supplied:
                yield f"{key}.{k}", f"{key}.{k} is set by the training itself: remove it"
            elif k not in signature.names and not signature.takes_any:
                yield f"{key}.{k}", unknown_key(tree, [*path, k], groups)
            elif k in signature.types and not annotations.fits(signature.types[k], value[k]):
                yield f"{key}.{k}", f"{key}.{k}={shown(value[k])} must be {signature.types[k]}, as {name} has it"
        if not value.get("_partial_") and "_args_" not in value:
            for k in signature.required:
                if k not in value and k not in supplied:
                    yield f"{key}.{k}", f"{key}.{k} is missing: {name} needs it, add +{key}.{k}=..."
        refused = [k for k in supplied if k not in signature.names and not signature.takes_any]
        if refused:
            yield f"{key}._target_", f"{key}._target_={target} does not take {' and '.join(refused)} from the training"


def _check_faults(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, fault) of a `_check_` that is not there, or cannot be given the parameters of its source."""
    value, source = tree.get("data"), section(tree, ["data"])
    check = at(value, ["_check_"])
    if source is not OpenData or not isinstance(value, dict) or not isinstance(check, str) or "." not in check:
        return  # the schema has said it all
    key, asked = "data._check_", f"data._check_={check}"
    try:
        signature = signatures.find(check)
    except signatures.Missing as error:
        yield key, f"{asked}: {error}" + _cure(check, error)
        return
    if signature is None:
        return
    given = [k for k in value if not k.startswith("_") and k not in fields(source)]
    for k in given:
        if k not in signature.names and not signature.takes_any:
            reason = "data._check_ gets the parameters of data._target_, add it there"
            yield f"{key}.{k}", f"data.{k} is no parameter of {check}: {reason}"
    for k in signature.required:
        if k not in given:
            yield f"{key}.{k}", f"{asked} needs {k}, which is not set: add +data.{k}=..., or give it a default"


def _cure(target: str, error: signatures.Missing) -> str:
    meant = [
        ".".join(like if part == error.name else part for part in target.split("."))
        for like in near(error.name, error.known)
    ]
    return question(meant, "correct the name, or install the package that has it")


# -- settings against each other ---------------------------------------------------------------------------------------


def _conflicts(config: Config, *, is_whole: bool) -> list[str]:
    """Faults of settings that are right each by itself. Rules that need a faulty key are left out."""
    found: list[str] = []
    rules = (_batch_rules, _data_rules, _file_rules, _optimizer_rules, _callback_rules, _notify_rules, _search_rules)
    for rule in (*rules, workers.faults, *allocation.RULES):
        try:
            found += rule(config)
        except AttributeError:
            if is_whole:
                raise
    return found


def _batch_rules(config: Config) -> Iterator[str]:
    if config.global_batch_size % config.trainer.accumulate_grad_batches:
        yield (
            f"trainer.accumulate_grad_batches={config.trainer.accumulate_grad_batches} does not divide "
            f"global_batch_size={config.global_batch_size}: a global batch is cut into that many equal micro-batches"
        )


def _data_rules(config: Config) -> Iterator[str]:
    val, test = getattr(config.data, "val_fraction", 0), getattr(config.data, "test_fraction", 0)
    if isinstance(val, float) and isinstance(test, float) and val + test >= 1:
        yield f"data.val_fraction={val} and data.test_fraction={test} leave nothing to train on: use smaller ones"


def _file_rules(config: Config) -> Iterator[str]:
    data = config.data
    if not isinstance(data, Files):
        return
    is_url, is_kept = remote.is_url(data.root), data.copy_to is not None or getattr(data, "cache", None) is not None
    if is_url:
        yield from remote.faults(data.root, "data.root")
        if not is_kept:
            yield f"data.root={remote.shown(data.root)} is a URL: say where its files are kept, data.copy_to=data/cache"
    if data.copy_remove and data.copy_to is None and not is_url:
        yield "data.copy_remove=true removes the copy of this run, and there is none: set data.copy_to, or leave it out"


def _optimizer_rules(config: Config) -> Iterator[str]:
    if getattr(config.optimizer, "nesterov", False) is True and getattr(config.optimizer, "momentum", 1) == 0:
        yield "optimizer.nesterov=true needs optimizer.momentum above 0: set one of them"
    if config.scale_with_workers and learning_rate(config) is None:
        yield "scale_with_workers=true multiplies optimizer.lr, but it has no value: add +optimizer.lr=..."


def _callback_rules(config: Config) -> Iterator[str]:
    has_logger = any(logger is not None for logger in config.logger.values())
    for name, callback in config.callbacks.items():
        if callback is None:
            continue
        key, arguments = f"callbacks.{name}", callback.arguments()
        monitor = arguments.get("monitor")
        if monitor is not None and monitor not in METRICS:
            yield f"{key}.monitor={monitor} is never measured: choose from {', '.join(METRICS)}"
        better = {"accuracy": "max", "loss": "min"}.get(str(monitor).rpartition("/")[2])
        if better and arguments.get("mode", better) != better:
            yield f"{key}.mode={arguments['mode']} takes the worst {monitor} for the best: set {key}.mode={better}"
        if str(monitor).startswith("val/") and config.trainer.check_val_every_n_epoch > config.trainer.max_epochs:
            yield (
                f"trainer.check_val_every_n_epoch={config.trainer.check_val_every_n_epoch} is above "
                f"trainer.max_epochs={config.trainer.max_epochs}: {key} needs {monitor}, which is never measured then"
            )
        if callback.target.endswith(".LearningRateMonitor") and not has_logger:
            yield f"{key} needs a logger, and there is none: set {key}=null, or choose logger=tensorboard"
        if arguments.get("train_time_interval") is not None:
            # Lightning 2.6 passes over it in manual optimization, which the step here is
            yield f"{key}.train_time_interval is not looked at: use {key}.every_n_train_steps"


def _notify_rules(config: Config) -> Iterator[str]:
    command = config.notify.command
    if command is None:
        return
    try:
        shlex.split(command)
    except ValueError as error:
        yield f"notify.command={command} is no command line: {error}, close the quotes"


def _search_rules(config: Config) -> Iterator[str]:
    search = config.search
    if search is None or search.objectives is None:
        return
    known = (*METRICS, *SUMMARY_NUMBERS)
    if not search.objectives:
        yield "search.objectives={} optimizes nothing: name one, or use null for what best.ckpt has"
    for name in search.objectives:
        if name not in known:
            yield f"search.objectives has {name}, which is never measured: choose from {', '.join(known)}"
    if len(search.objectives) > 1 and search.pruner is not None:
        yield "search.pruner compares by one objective, and search.objectives has several: use search.pruner=null"


def learning_rate(config: Config) -> float | None:
    """optimizer.lr, where the optimizer has one."""
    value = config.optimizer.arguments().get("lr")
    return float(value) if isinstance(value, int | float) else None


def scaled(config: Config) -> Config:
    """The configuration with batch size and learning rate multiplied by the workers, if it asks for that."""
    if not config.scale_with_workers:
        return config
    num_workers = workers.found(config).world_size
    tree = to_tree(config)
    tree["global_batch_size"] *= num_workers
    tree["optimizer"]["lr"] *= num_workers
    tree["scale_with_workers"] = False
    return Config.model_validate(tree)


# -- files -------------------------------------------------------------------------------------------------------------


def to_tree(config: Config) -> dict[str, Any]:
    """Plain values, with `_target_` and `_partial_` as they stand in YAML."""
    return config.model_dump(by_alias=True)


def fingerprint(config: Config) -> str:
    """Equal for equal trainings: ranks compare it before the first step.

    Who hears of the end is not part of it, nor how a machine reaches the others: their networks may differ in name.
    """
    tree = {key: value for key, value in to_tree(config).items() if key not in NOT_OF_A_TRAINING}
    tree["strategy"] = {k: v for k, v in tree["strategy"].items() if k not in ("interface", "variables")}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def save(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML."""
    write_atomically(path, yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True))


def load(path: Path) -> Config:
    """Read a saved configuration. Raises ConfigError when it does not fit this version of Lockstep."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"{path} cannot be read: {one_line(error)}"]) from error
    if not isinstance(tree, dict):
        raise ConfigError([f"{path} holds no configuration"])
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        faults = dict(_schema_faults(tree, error, {}))
        raise ConfigError([f"{path}: {fault}" for fault in faults.values()]) from error


def imported(target: str) -> Any:
    """What a dotted name stands for."""
    from hydra.utils import get_object

    return get_object(target)


def build(found: Target | Open, **supplied: Any) -> Any:
    """Call the target of a section, or bind it where it is partial. What the target raises comes out as it is."""
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    is_partial = getattr(found, "partial", False)
    try:
        return instantiate({"_target_": found.target, "_partial_": is_partial, **found.arguments()}, **supplied)
    except InstantiationException as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None
