"""Implements `--cfg` and the completion of arguments in a shell."""

from argparse import Namespace
from collections.abc import Sequence

from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf, open_dict

from lockstep.config import overrides
from lockstep.config.composing import compose, hydra_job
from lockstep.config.composing.compose import Source


def complete(arguments: list[str], source: Source) -> None:
    """Print what a shell requests, which is a script to install, or completions."""
    with compose.start_hydra(source) as config_name:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.shell_completion(config_name, arguments)


def show(arguments: Namespace, override_lines: Sequence[str], source: Source) -> None:
    """Print the configuration of some overrides, and that of Hydra.

    Raises ConfigError for the errors of the overrides.
    """
    try:
        cfg = compose.compose_config(override_lines, source, with_hydra=True)
    except compose.REFUSALS:
        overrides.plan(override_lines, source)  # This call raises their errors.
        raise
    with hydra_job.hydra_config(cfg):
        if arguments.resolve:
            OmegaConf.resolve(cfg)
    with open_dict(cfg), open_dict(cfg.hydra):
        if arguments.cfg == "job":
            del cfg["hydra"]
        elif arguments.cfg == "hydra":
            del cfg.hydra["help"], cfg.hydra["hydra_help"]
            cfg = {"hydra": cfg.hydra}
    print(OmegaConf.to_yaml(cfg), end="")
