"""Implements the command `lockstep`; `lockstep --help` lists its subcommands.

The subcommands are declared in groups. Below each group are the functions that run its commands.
"""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import lockstep
from lockstep.cli import data, entry
from lockstep.runs import naming
from lockstep.runs.files import print_result
from lockstep.runs.folder import EXIT_CONFIG, SWEEP
from lockstep.runs.naming import display_path, quote_path
from lockstep.system import json_output, launcher
from lockstep.system.parser import CommandParser, parse_arguments
from lockstep.system.process import leave
from lockstep.system.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from lockstep.config.composing.compose import Source

NEW = (
    "Create a project with its own data source, network, task and settings, "
    "and a test of exact training."
)
VERIFYING = """\
Trains two epochs of three steps in float64 with 1 worker, and compares with several workers: \
even shards, uneven
shards, an empty shard, and a resume with another number of workers. \
Exit code 0: equal up to rounding; 1: different,
and the first difference is printed, or a training failed; 2: errors in the configuration.
"""
AddParser = Callable[..., argparse.ArgumentParser]  # Adds a parser of a command.
PRECISIONS = ("auto", "bfloat16", "float16", "tf32", "float32", "float64")
# These commands print no JSON, or have parsers of their own.
WITHOUT_JSON = ("train", "model", "jobs", "board", "data", "schema")
RUN = "run folder, or latest"


def main() -> NoReturn:
    """Run `lockstep`, or `python -m lockstep.cli.main`."""
    entry.begin()
    leave(_command)


def _command() -> int:
    if sys.argv[1:2] == ["train"]:
        entry.start_training()
        from lockstep.cli.train import run_command

        return run_command(_current_folder(), sys.argv[2:])
    try:
        if sys.argv[1:2] == ["jobs"]:
            _restore_handlers()
            from lockstep.cluster.commands import run_jobs_command

            return run_jobs_command(sys.argv[2:])
        arguments = parse_arguments(_parser(), sys.argv[1:])
        if not arguments.has_workers:
            _restore_handlers()
        return arguments.function(arguments)
    except FileNotFoundError as error:
        json_output.fail(error, code="missing")
    except ValueError as error:
        json_output.fail(error)
    except OSError as error:
        if error.filename is None:
            raise
        # The message of an EPERM error is a sentence of runs/permissions.py.
        separator = " " if error.errno == errno.EPERM else ": "
        json_output.fail(
            f"{display_path(Path(error.filename))}{separator}{error.strerror}", code="access"
        )
    return EXIT_CONFIG


def _restore_handlers() -> None:
    """Restore Python's own signal handlers, for commands that end by KeyboardInterrupt."""
    for number in STOP_SIGNALS:
        handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, handler)


def _parser() -> argparse.ArgumentParser:
    """Declare all commands, in the order of `lockstep --help`."""
    parser = CommandParser(prog="lockstep", description="Train, monitor and use image classifiers.")
    parser.add_argument("--version", action="version", version=f"lockstep {lockstep.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    add_parser = commands.add_parser
    add_parser("train", help="train a network (same as python train.py)", add_help=False)
    _declare_starting(add_parser)
    _declare_monitoring(add_parser)
    _declare_networks(add_parser)
    _declare_tools(add_parser)
    for command, command_parser in commands.choices.items():
        if command not in WITHOUT_JSON:
            json_output.add_option(command_parser)
    return parser


def _declare(
    add_parser: AddParser,
    command: str,
    help_text: str,
    function: Callable[[argparse.Namespace], int],
    *,
    has_workers: bool = False,
    **settings: Any,
) -> argparse.ArgumentParser:
    """Add a command, and return its parser.

    `function` runs the command, imports what it needs, and returns the exit code. A command that
    `has_workers` keeps the signal handlers of `entry.begin` until its workers start.
    """
    parser = add_parser(command, **{"help": help_text, "description": help_text, **settings})
    parser.set_defaults(function=function, has_workers=has_workers)
    return parser


def _add_overrides(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("overrides", nargs="*", default=[], metavar="setting=value", help=help_text)


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the settings and options of commands that use a trained network."""
    _add_overrides(parser, "settings to change, such as data.root=elsewhere")
    parser.add_argument("--trust", action="store_true", help=naming.TRUST_HELP)
    parser.add_argument(
        "--checkpoint",
        choices=("best", "last"),
        default="best",
        help="checkpoint to use, default: best",
    )


def _add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Add the settings and options of commands that compute a trained network in workers."""
    _add_network_options(parser)
    parser.add_argument(
        "--devices",
        metavar="N",
        help="number of workers, or GPUs such as 0,2; default: as in training, on one machine",
    )
    parser.add_argument("--strategy", choices=("auto", "cpu"), help="cpu: do not use GPUs")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="default: float32, or float64 for a run in float64",
    )
    # The value is the folder of the job.
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)


def _current_folder() -> Path:
    """Return the folder of the project, which is the current one, or in a job the copy of it.

    Exits if the current folder was removed.
    """
    from lockstep.config import errors
    from lockstep.config.saved import project

    if launcher.PROJECT in os.environ:
        return Path(os.environ.pop(launcher.PROJECT))
    try:
        return project.current()
    except errors.ConfigError as error:
        errors.exit_with(error)


def _enter_project() -> "Source":
    """Let this process find the modules of the project in the current folder.

    Returns the source of its configuration.
    """
    from lockstep.config.composing import compose
    from lockstep.config.saved import project

    folder = _current_folder()
    project.enter(folder, None)
    return compose.source_of(folder)


def _declare_starting(add_parser: AddParser) -> None:
    new = _declare(
        add_parser,
        "new",
        "create a project with your own data and network",
        _run_new,
        description=NEW,
    )
    new.add_argument(
        "path",
        type=Path,
        metavar="NAME",
        help="name of the project, and of the folder to create",
    )
    benchmark = _declare(
        add_parser,
        "benchmark",
        "measure whether several workers train faster here",
        _run_benchmark,
        has_workers=True,
        add_help=False,
    )
    benchmark.add_argument("-h", "--help", action="store_true", dest="is_help")
    verify = _declare(
        add_parser,
        "verify",
        "check that a configuration gives the same results on 1, 2 and 3 workers",
        _run_verify,
        has_workers=True,
        epilog=VERIFYING,
    )
    verify.add_argument(
        "--bits",
        action="store_true",
        help="compare bit by bit in the configured precision, with virtual shards "
        "(trainer.virtual_shards, or 4)",
    )
    model = _declare(
        add_parser,
        "model",
        "show the layers of a network with their shapes, parameters and FLOPs",
        _run_model,
    )
    model.add_argument(
        "--depth",
        type=int,
        default=2,
        metavar="N",
        help="levels of layers to show, default: 2",
    )
    for parser in (benchmark, verify, model):
        _add_overrides(parser, "as for lockstep train")


def _run_new(arguments: argparse.Namespace) -> int:
    from lockstep.starter.project import create

    path = _current_folder() / arguments.path
    requirement = create(path)
    print_result({"path": str(path), "requirement": requirement})
    print(
        f"{quote_path(path)} is a project with its own images, network and task:\n"
        f"  cd {quote_path(path)}\n"
        "  make train    # or without installing it: lockstep train\n"
        "  make test\n"
        f"Its pyproject.toml requires {requirement}"
    )
    return 0


def _run_benchmark(arguments: argparse.Namespace) -> int:
    launcher.start_once("benchmark", os.environ)
    entry.start_training()
    source = _enter_project()
    if arguments.is_help:
        from lockstep.cli.help import show_benchmark

        show_benchmark(source)
        return 0
    from lockstep.benchmark.command import run_benchmark

    return run_benchmark(arguments.overrides, source)


def _run_verify(arguments: argparse.Namespace) -> int:
    launcher.start_once("verify", os.environ)
    entry.start_training()
    source = _enter_project()
    from lockstep.verify.command import run_verification

    return run_verification(arguments.overrides, source, is_by_bits=arguments.bits)


def _run_model(arguments: argparse.Namespace) -> int:
    from lockstep.cli.model import show_model

    return show_model(arguments.overrides, _enter_project(), depth=arguments.depth)


def _declare_monitoring(add_parser: AddParser) -> None:
    status = _declare(
        add_parser,
        "status",
        "show the state of a run, or the table of a sweep",
        _run_status,
    )
    status.add_argument(
        "run",
        nargs="?",
        default="latest",
        help="folder of a run or a sweep, default: latest",
    )
    runs = _declare(
        add_parser,
        "runs",
        "list the runs in a folder",
        _run_runs,
        description="List the runs in a folder, newest first. Output to a pipe has all columns.",
    )
    runs.add_argument(
        "folder", nargs="?", default="outputs", help="folder to search, default: outputs"
    )
    runs.add_argument(
        "--sort",
        metavar="COLUMN",
        default="-started",
        help="column, metric or typed setting; --sort=-COLUMN: largest first; default: -started",
    )
    compare = _declare(
        add_parser,
        "compare",
        "compare runs, or settings over their seeds or folds",
        _run_compare,
    )
    compare.add_argument(
        "runs",
        nargs="+",
        metavar="run",
        help="run folders, SWEEP:SETTING=VALUE,..., or one SWEEP for all its settings",
    )
    labels = _declare(
        add_parser,
        "labels",
        "list the images whose label is probably wrong, with pictures",
        _run_inference,
        has_workers=True,
    )
    labels.add_argument(
        "run",
        metavar="SWEEP|RUN",
        help=(
            "SWEEP over folds, which judges all images; or a run folder, "
            "whose val and test images are judged"
        ),
    )
    labels.add_argument(
        "--output",
        default="labels.csv",
        help=(
            "CSV file to write, with a row for each image, and pictures next to it (.png); "
            "default: labels.csv"
        ),
    )
    _add_worker_options(labels)
    add_parser(
        "jobs",
        help="list, wait for, cancel and requeue submitted runs",
        add_help=False,
    )
    stop = _declare(
        add_parser,
        "stop",
        "stop a run, or all trials of a sweep, with a checkpoint",
        _run_stop,
    )
    stop.add_argument("run", help="folder of a run or a sweep, or latest")
    stop.add_argument(
        "--reason",
        default="lockstep stop",
        help="recorded in the status of the run",
    )


def _run_status(arguments: argparse.Namespace) -> int:
    path = Path(arguments.run)
    if (path / SWEEP).is_file():
        from lockstep.sweeps.views import show_sweep

        return show_sweep(path.resolve(), is_json=arguments.json)
    from lockstep.monitoring.status import show_status

    return show_status(naming.find(arguments.run), is_json=arguments.json)


def _run_runs(arguments: argparse.Namespace) -> int:
    from lockstep.monitoring.table import show_runs

    return show_runs(arguments.folder, sort=arguments.sort, is_json=arguments.json)


def _run_compare(arguments: argparse.Namespace) -> int:
    folders = [Path(run.partition(":")[0]) for run in arguments.runs]
    if any((folder / SWEEP).is_file() for folder in folders):
        from lockstep.trials.comparison import compare_sweeps as compare
    else:
        from lockstep.monitoring.comparison import compare_runs as compare
    return compare(arguments.runs, is_json=arguments.json)


def _run_stop(arguments: argparse.Namespace) -> int:
    from lockstep.cluster.stopping import stop

    return stop(arguments.run, arguments.reason)


def _declare_networks(add_parser: AddParser) -> None:
    evaluate = _declare(
        add_parser,
        "eval",
        "evaluate a trained network, on any number of workers",
        _run_inference,
        has_workers=True,
    )
    predict = _declare(
        add_parser,
        "predict",
        "predict images: a table, or a CSV file",
        _run_inference,
        has_workers=True,
    )
    embed = _declare(
        add_parser,
        "embed",
        "write the features of images (inputs of the last layer) to a NumPy array",
        _run_inference,
        has_workers=True,
    )
    export = _declare(
        add_parser,
        "export",
        "write a trained network to a file for other programs, and check it",
        _run_export,
    )
    for parser in (evaluate, predict, export):
        parser.add_argument(
            "run",
            metavar="RUN|SWEEP",
            help="run folder, or latest; of a sweep, the networks of its best setting are averaged",
        )
    embed.add_argument("run", help=RUN)
    for parser in (predict, embed):
        parser.add_argument(
            "source",
            help="image file, folder of images, or split of the run's data: val or test",
        )
    evaluate.add_argument(
        "--split",
        choices=("test", "val", "all"),
        help="default: test; all, for other images without a test split",
    )
    evaluate.add_argument(
        "--output",
        help="CSV file to write: truth, prediction and loss, one row per image",
    )
    evaluate.add_argument(
        "--pictures",
        metavar="FOLDER",
        help="new folder for report.json, the confusion matrix, and the worst mistakes",
    )
    predict.add_argument(
        "--output",
        help="CSV file to write, one row per image; default: print a table",
    )
    embed.add_argument(
        "--output",
        required=True,
        help="array to write, NAME.npy; names of its rows: NAME.npy.csv",
    )
    export.add_argument(
        "--output",
        help=(
            "file to write: NAME.onnx, or NAME.pt2 for torch.export; "
            "default: network.onnx in the run folder"
        ),
    )
    for parser in (predict, export):
        parser.add_argument(
            "--max-error",
            type=float,
            metavar="RATE",
            help="maximum error rate, such as 0.05; less certain images are labeled unknown",
        )
    for parser in (predict, embed):
        parser.add_argument(
            "--strict",
            action="store_true",
            help="write nothing if an image cannot be read",
        )
    for parser in (evaluate, predict, export):
        parser.add_argument(
            "--flip",
            action="store_true",
            help="predict the mirror image of each image, too, and average both",
        )
    for parser in (evaluate, predict):
        parser.add_argument(
            "--top-k",
            type=int,
            default=1,
            metavar="K",
            help="number of most probable classes in each row",
        )
    for parser in (evaluate, predict, embed):
        _add_worker_options(parser)
    _add_network_options(export)


def _run_inference(arguments: argparse.Namespace) -> int:
    """Run eval, predict, embed or labels."""
    launcher.shared_world(os.environ)
    entry.start_training()
    from lockstep.cli.inference import infer

    return infer(arguments, _current_folder())


def _run_export(arguments: argparse.Namespace) -> int:
    from lockstep.cli.export import run_export

    return run_export(arguments, _current_folder())


def _declare_tools(add_parser: AddParser) -> None:
    board = _declare(
        add_parser,
        "board",
        "show all runs in a browser",
        _run_board,
        description="Show all runs in TensorBoard.",
    )
    board.add_argument("--logdir", default="outputs", metavar="FOLDER", help="default: outputs")
    board.add_argument(
        "--host",
        help="name or address to listen on; default: localhost, for this machine only",
    )
    board.add_argument("--port", type=int, metavar="N", help="default: 6006, or the next free one")
    board.add_argument(
        "--training-hosts",
        default="",
        metavar="NAMES",
        help="additional host names to accept",
    )
    data.add_commands(
        _declare(
            add_parser,
            "data",
            "check and fetch images",
            lambda arguments: data.run_data_command(arguments, _enter_project()),
        )
    )
    _declare(add_parser, "machine", "show GPUs, cores, memory and disks", _run_machine)
    _declare(
        add_parser,
        "schema",
        "print a JSON Schema of the files in conf/, for editors",
        _run_schema,
    )


def _run_board(arguments: argparse.Namespace) -> int:
    try:
        from lockstep.board.command import serve_board

        return serve_board(
            Path(arguments.logdir), arguments.host, arguments.port, arguments.training_hosts
        )
    except KeyboardInterrupt:
        # Ctrl-C ends the board, also while it starts.
        return 0


def _run_machine(arguments: argparse.Namespace) -> int:
    from lockstep.cli.machine import show_machine

    return show_machine(is_json=arguments.json)


def _run_schema(arguments: argparse.Namespace) -> int:
    from lockstep.cli.schema import show_schema

    return show_schema(_current_folder())


if __name__ == "__main__":
    main()
