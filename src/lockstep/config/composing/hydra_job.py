"""Provides Hydra's configuration of a job.

`${hydra:...}` in settings and `HydraConfig.get()` in custom parts read it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lockstep.config.composing.compose import parse_override
from lockstep.config.errors import config_error, one_line


@contextlib.contextmanager
def hydra_config(cfg: DictConfig) -> Iterator[None]:
    """Let this process read the section `hydra` of `cfg` in this block."""
    previous_cfg = HydraConfig.instance().cfg
    # `set_config` would copy the section.
    HydraConfig.instance().cfg = cfg  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        HydraConfig.instance().cfg = previous_cfg


def begin(
    cfg: DictConfig, lines: Sequence[str], number: int, *, is_multirun: bool
) -> tuple[str, str]:
    """Set the values that Hydra sets when it starts a job with some overrides.

    Returns the folder of the job and "". In a sweep, returns the folder of the sweep and the path
    of the job below it. Raises ConfigError if they cannot be resolved.
    """
    all_overrides = [parse_override(line) for line in lines]
    overrides = [override for override in all_overrides if not override.is_hydra_override()]
    hydra = cfg.hydra
    form = hydra.job.config.override_dirname
    dirname_items = [
        override.input_line or ""
        for override in overrides
        if override.key_or_group not in form.exclude_keys
    ]
    with open_dict(hydra):
        hydra.overrides.task = [override.input_line for override in overrides]
        hydra.job.override_dirname = form.item_sep.join(sorted(dirname_items)).replace(
            "=", form.kv_sep
        )
        hydra.mode = RunMode.MULTIRUN if is_multirun else RunMode.RUN
        hydra.job.num, hydra.job.id = number, str(number)
    with hydra_config(cfg):
        root = _text(cfg, "hydra.sweep.dir" if is_multirun else "hydra.run.dir")
        subdir = _text(cfg, "hydra.sweep.subdir") if is_multirun else ""
    hydra.runtime.output_dir = str(Path.cwd() / root / subdir)
    return root, subdir


def _text(cfg: DictConfig, key: str) -> str:
    try:
        return str(OmegaConf.select(cfg, key))
    except OmegaConfBaseException as error:
        raise config_error("failed", key, f": {one_line(error)}") from error
