"""Removes the parameters of a replaced target from a section with a custom `_target_`."""

import re
from collections.abc import Sequence

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lockstep.config.composing.compose import CONF, Source, compose_config, parse_override
from lockstep.config.schema.configuration import CALLED, fields


def drop_replaced_parameters(
    cfg: DictConfig, overrides: Sequence[str], source: Source
) -> DictConfig:
    """Remove the parameters of the replaced target from sections with a custom `_target_`.

    `overrides` are all those of `cfg`, which was composed from `source`. A section whose option
    names the target stays as it is.
    """
    override_pairs = [(line, parse_override(line)) for line in overrides]
    for group, section_type in CALLED.items():
        lockstep_targets = {
            name
            for file in (CONF / group).glob("*.yaml")
            for name in re.findall(r"^_target_: *(\S+)$", file.read_text(), re.MULTILINE)
        }
        if OmegaConf.select(cfg, f"{group}._target_") in (None, *lockstep_targets):
            continue
        choices = [
            line
            for line, override in override_pairs
            if override.key_or_group != group
            and ("." not in override.key_or_group or override.is_hydra_override())
        ]
        values = [
            f"++{line.lstrip('+')}"
            for line, override in override_pairs
            if override.key_or_group.startswith(f"{group}.") and not override.is_delete()
        ]
        try:
            custom_cfg = compose_config([*choices, f"~{group}", *values], source)
        except HydraException:
            # The defaults choose no option of this group.
            continue
        if OmegaConf.select(custom_cfg, f"{group}._target_") is not None:
            parameter_names = [
                name
                for name in fields(section_type)
                if name[0] != "_" and name not in section_type.passed
            ]
            parameters = {name: cfg[group][name] for name in parameter_names if name in cfg[group]}
            cfg[group] = OmegaConf.merge(parameters, custom_cfg[group])
    return cfg
