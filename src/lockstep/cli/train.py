"""`python train.py` and `lockstep train`: checks the command line, then Hydra starts each training."""

import contextlib
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lockstep

if TYPE_CHECKING:
    from argparse import Namespace

    from lockstep.config.composing.compose import Source
    from lockstep.config.saved_run import SavedRun


def run_command(project: Path) -> int:
    """Check the command line, then print --help or --version, or start Hydra. Returns 0, or exits with another code.

    `project` is the folder with the `conf` and modules of this command.
    """
    if "--version" in sys.argv:
        print(f"lockstep {lockstep.__version__}")
        return 0

    import hydra

    from lockstep.config.composing import compose
    from lockstep.config.errors import ConfigError, exit_with

    try:
        arguments, source = _parse_command(project)
        resumed = _saved_run(arguments, source)
        if resumed is None and not _is_checked(arguments, source):
            return 0
        name = compose.primary(source)
        if any(word.startswith(("--config-name", "-cn")) for word in sys.argv):
            sys.argv.append(f"--config-name={name}")  # the last one is used
    except ConfigError as error:
        exit_with(error)

    @hydra.main(version_base="1.3", config_path=str(source.conf), config_name=name)
    def task(cfg: Any) -> None:
        train(cfg, source, resumed)

    task()
    return 0


def _parse_command(folder: Path) -> "tuple[Namespace, Source]":
    """Return the arguments of Hydra, and the source of the configuration. Raises ConfigError."""
    from lockstep.config import saved_run
    from lockstep.config.composing import compose, typed_text
    from lockstep.config.errors import ConfigError, Error
    from lockstep.config.saved import project
    from lockstep.system.parser import hydra_arguments

    is_trusted, run = "--trust" in sys.argv, None
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in ("--trust", "--json")]
    if any("resume=" in word for word in sys.argv):
        with contextlib.suppress(ConfigError):  # reported later, unless this is --help
            run = saved_run.run_to_resume(sys.argv[1:])
    elif is_trusted and not {"-m", "--multirun"}.intersection(sys.argv):
        raise ConfigError(
            Error("conflict", "--trust", "is for a run or a sweep that is resumed", "remove it, or add resume=...")
        )
    project.enter(folder, None if is_trusted else run)
    source = compose.source_of(folder)
    arguments = hydra_arguments()
    arguments.is_trusted = is_trusted
    if arguments.config_path:
        source = source._replace(conf=folder / arguments.config_path)
        sys.argv.append(f"--config-path={source.conf}")  # the last one is used; Hydra treats this file as the script
    if arguments.config_name:
        source = source._replace(name=arguments.config_name)
    if arguments.config_dir:
        source = source._replace(added=Path(arguments.config_dir))
    if arguments.unknown:
        from lockstep.cli.help import option_error

        raise ConfigError(*(option_error(option, text, source) for option, text in arguments.unknown))
    if not (arguments.help or arguments.shell_completion):  # whose words are names of sections
        options = [word for word in sys.argv[1:] if word not in arguments.overrides]
        arguments.overrides = typed_text.hydra_overrides(arguments.overrides)
        sys.argv[1:] = [*arguments.overrides, *options]  # Hydra parses them again
    return arguments, source


def _saved_run(arguments: "Namespace", source: "Source") -> "SavedRun | None":
    """Return the run to resume, with the changes of this command; Hydra gets the necessary part. Raises ConfigError."""
    is_help = any((arguments.help, arguments.hydra_help, arguments.cfg, arguments.info, arguments.shell_completion))
    if is_help or arguments.multirun or not any("resume=" in text for text in arguments.overrides):
        return None
    from lockstep.config import overrides, saved_run
    from lockstep.config.composing import compose

    compose.search_defaults()
    if (folder := saved_run.run_to_resume(arguments.overrides)) is None:
        return None
    found = saved_run.check_resume(folder, arguments.overrides, source, is_trusted=arguments.is_trusted)
    groups = compose.groups(*source.folders)
    applied = [text for text in arguments.overrides if not overrides.is_choice(compose.parse_override(text), groups)]
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in applied]
    return found


def _is_checked(arguments: "Namespace", source: "Source") -> bool:
    """Check the overrides. Returns False after printing --help. Raises ConfigError."""
    from omegaconf import OmegaConf

    from lockstep.cli import sweep
    from lockstep.config import overrides
    from lockstep.config.composing import compose

    compose.search_defaults()
    OmegaConf.register_new_resolver("sweep_folder", lambda: "outputs", replace=True)
    if arguments.help:
        from lockstep.cli.help import show_help

        show_help(arguments.overrides, source)
        return False
    if arguments.cfg or arguments.info or arguments.shell_completion or arguments.hydra_help:
        return True
    if arguments.multirun:
        sweep.check(arguments, source)
    else:
        overrides.plan(arguments.overrides, source)  # a single run begins with the second round
        sweep.check_folder("hydra.run.dir", "outputs", arguments.overrides, source)
    return True


def train(cfg: Any, source: "Source", resumed: "SavedRun | None") -> None:
    """Train a new run, or one `resumed`, as the task of Hydra. Exits with its code if that is not 0."""
    from hydra import compose
    from hydra.core.hydra_config import HydraConfig

    from lockstep.cli.answers import end_run
    from lockstep.config import build, overrides
    from lockstep.config.errors import ConfigError, exit_with
    from lockstep.launch import runner

    hydra = HydraConfig.get()
    typed = list(hydra.overrides.task)
    chosen = None if hydra.runtime.output_dir == os.getcwd() else Path(hydra.runtime.output_dir)
    first = partial(build.use_hydra, HydraConfig.instance().cfg)
    try:
        if resumed is None:
            config = overrides.check_job(cfg, typed, partial(compose, hydra.job.config_name))
            if config.cluster.name == "none":
                folder, code = runner.start(config, typed, chosen, first=first)
            else:
                from lockstep.cluster import submission  # not imported for a new run on this machine

                overrides.check_called([config])
                folder, code = submission.start(config, typed, chosen)
        else:
            from lockstep.cluster import submission

            submission.refuse_live(resumed.folder)
            is_submitted = resumed.config.cluster.name != "none"
            folder, code = (submission.resume if is_submitted else partial(runner.resume, first=first))(*resumed)
    except ConfigError as error:
        exit_with(error)
    end_run(folder, code)
