"""`python train.py` and `lockstep train`: starts a run or a sweep, or prints help."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import lockstep
from lockstep.cli import command_line

if TYPE_CHECKING:
    from argparse import Namespace

    from lockstep.config.composing.compose import Source
    from lockstep.config.errors import Error


def run_command(project: Path, words: Sequence[str]) -> int:
    """Run the command that these arguments describe.

    `project` is the folder with the `conf` and modules of this command. Returns 0, or exits with
    another code.
    """
    arguments = command_line.parse(words)
    if arguments.version:
        print(f"lockstep {lockstep.__version__}")
        return 0
    from lockstep.config.composing import typed_text
    from lockstep.config.errors import ConfigError, exit_with

    try:
        source = _enter(project, arguments)
        if errors := _option_errors(arguments, source):
            raise ConfigError(*errors)
        if arguments.help:
            from lockstep.cli.help import show_help

            show_help(arguments.overrides, source)
            return 0
        if arguments.shell_completion:
            from lockstep.cli import composed

            composed.complete(arguments.overrides, source)
            return 0
        overrides = typed_text.hydra_overrides(arguments.overrides)
        if arguments.cfg:
            from lockstep.cli import composed

            composed.show(arguments, overrides, source)
            return 0
        if arguments.multirun:
            from lockstep.sweeps import start

            return start.sweep(overrides, source, words, is_trusted=arguments.trust)
        from lockstep.cli.results import end_run
        from lockstep.cluster import request

        end_run(*request.start(request.read(overrides, source, is_trusted=arguments.trust)))
    except ConfigError as error:
        exit_with(error)
    return 0


def _enter(folder: Path, arguments: "Namespace") -> "Source":
    """Let this process find the modules of the project.

    Returns the source of its configuration. Raises ConfigError.
    """
    from lockstep.config import saved_run
    from lockstep.config.composing import compose
    from lockstep.config.errors import ConfigError
    from lockstep.config.saved import project

    run = None
    with contextlib.suppress(ConfigError):  # The error is reported later, unless this is --help.
        run = None if arguments.trust else saved_run.run_to_resume(arguments.overrides)
    project.enter(folder, run)
    source = compose.source_of(folder)
    if arguments.config_path:
        source = source._replace(conf=folder / arguments.config_path)
    if arguments.config_name:
        source = source._replace(name=arguments.config_name)
    if arguments.config_dir:
        source = source._replace(added=Path(arguments.config_dir))
    return source


def _option_errors(arguments: "Namespace", source: "Source") -> "list[Error]":
    from lockstep.config.errors import Error

    errors = []
    if arguments.unknown:
        from lockstep.cli.help import option_error

        errors += [option_error(option, setting, source) for option, setting in arguments.unknown]
    is_resumed = arguments.multirun or any("resume=" in setting for setting in arguments.overrides)
    if arguments.trust and not is_resumed:
        errors.append(
            Error(
                "conflict",
                "--trust",
                "is for a run or a sweep that is resumed",
                "remove it, or add resume=...",
            )
        )
    return errors
