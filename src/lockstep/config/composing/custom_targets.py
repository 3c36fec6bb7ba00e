"""Removes the parameters of a replaced target from a section with a custom `_target_`."""

import re
from collections.abc import Callable, Sequence

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from lockstep.config.composing.compose import CONF, parse_override
from lockstep.config.schema.configuration import CALLED, fields


def drop_replaced_parameters(
    cfg: DictConfig, texts: Sequence[str], compose: Callable[[list[str]], DictConfig]
) -> DictConfig:
    """Remove the parameters of the replaced target from sections with a custom `_target_`.

    `texts` are all overrides of `cfg`, and `compose` composes some of them. A section whose option
    names the target stays as it is.
    """
    typed = [(text, parse_override(text)) for text in texts]
    for group, section_type in CALLED.items():
        files = (CONF / group).glob("*.yaml")
        known = {
            name
            for file in files
            for name in re.findall(r"^_target_: *(\S+)$", file.read_text(), re.MULTILINE)
        }
        if OmegaConf.select(cfg, f"{group}._target_") in (None, *known):
            continue
        others = [
            text
            for text, override in typed
            if override.key_or_group != group
            and ("." not in override.key_or_group or override.is_hydra_override())
        ]
        values = [
            f"++{text.lstrip('+')}"
            for text, override in typed
            if override.key_or_group.startswith(f"{group}.") and not override.is_delete()
        ]
        try:
            alone = compose([*others, f"~{group}", *values])
        except HydraException:
            # The defaults choose no option of this group.
            continue
        if OmegaConf.select(alone, f"{group}._target_") is not None:
            ours = [
                name
                for name in fields(section_type)
                if name[0] != "_" and name not in section_type.passed
            ]
            kept = {name: cfg[group][name] for name in ours if name in cfg[group]}
            cfg[group] = OmegaConf.merge(kept, alone[group])
    return cfg
