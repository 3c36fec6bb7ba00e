"""The command `lockstep`; `lockstep --help` lists its subcommands."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import lockstep
from lockstep.cli import data, entry
from lockstep.runs import naming
from lockstep.runs.files import answer
from lockstep.runs.folder import EXIT_CONFIG, SWEEP
from lockstep.runs.naming import display_path, quote_path
from lockstep.system import json_output, launcher
from lockstep.system.parser import CommandParser, parse_arguments
from lockstep.system.process import leave
from lockstep.system.signals import STOP_SIGNALS

if TYPE_CHECKING:
    from lockstep.config.composing.compose import Source

NEW = "Create a project with its own data source, network, task and settings, and a test of exact training."
VERIFYING = """\
Trains two epochs of three steps in float64 with 1 worker, and compares with several workers: even shards, uneven
shards, an empty shard, and a resume with another number of workers. Exit code 0: equal up to rounding; 1: different,
and the first difference is printed, or a training failed; 2: errors in the configuration.
"""


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
            from lockstep.cluster.commands import run_jobs_command as run

            return run(sys.argv[2:])
        arguments = parse_arguments(_parser(), sys.argv[1:])
        if arguments.command in ("eval", "predict", "embed", "labels"):
            launcher.shared_world(os.environ)
            entry.start_training()
        elif arguments.command in ("benchmark", "verify"):
            launcher.start_once(arguments.command, os.environ)
            entry.start_training()
        else:
            _restore_handlers()
        return _run(arguments)
    except FileNotFoundError as error:
        json_output.fail(error, code="missing")
    except ValueError as error:
        json_output.fail(error)
    except OSError as error:
        if error.filename is None:
            raise
        separator = " " if error.errno == errno.EPERM else ": "  # a sentence of runs/gate.py
        json_output.fail(f"{display_path(Path(error.filename))}{separator}{error.strerror}", code="access")
    return EXIT_CONFIG


def _restore_handlers() -> None:
    """Restore Python's own signal handlers, for commands that end by KeyboardInterrupt."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="lockstep", description="Train, monitor and use image classifiers.")
    parser.add_argument("--version", action="version", version=f"lockstep {lockstep.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def command(name: str, text: str, **settings: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, **{"description": text, **settings})

    commands.add_parser("train", help="train a network (same as python train.py)", add_help=False)
    new = command("new", "create a project with your own data and network", description=NEW)
    new.add_argument("path", type=Path, metavar="NAME", help="name of the project, and of the folder to create")
    benchmark = command("benchmark", "measure whether several workers train faster here", add_help=False)
    benchmark.add_argument("-h", "--help", action="store_true", dest="is_help")
    text = "check that a configuration gives the same results on 1, 2 and 3 workers"
    verify = command("verify", text, epilog=VERIFYING)
    text = "compare the bits, with virtual shards (trainer.virtual_shards, or 4) in the precision of the configuration"
    verify.add_argument("--bits", action="store_true", help=text)
    model = command("model", "show the layers of a network with their shapes, parameters and FLOPs")
    for subparser in (benchmark, verify, model):
        subparser.add_argument("overrides", **data.SETTINGS, help="as for lockstep train")
    model.add_argument("--depth", type=int, default=2, metavar="N", help="levels of layers to show, default: 2")
    status = command("status", "show the state of a run, or the table of a sweep")
    status.add_argument("run", nargs="?", default="latest", help="folder of a run or a sweep, default: latest")
    text = "List the runs in a folder, newest first. Output to a pipe has all columns."
    runs = command("runs", "list the runs in a folder", description=text)
    runs.add_argument("folder", nargs="?", default="outputs", help="default: outputs")
    text = "column, metric or typed setting; --sort=-COLUMN: largest first; default: -started"
    runs.add_argument("--sort", metavar="COLUMN", default="-started", help=text)
    compare = command("compare", "compare runs, or settings over their seeds or folds")
    text = "run folders, SWEEP:SETTING=VALUE,..., or one SWEEP for all its settings"
    compare.add_argument("runs", nargs="+", metavar="run", help=text)
    labels = command("labels", "list the images whose label is probably wrong, with pictures")
    text = "SWEEP over folds, which judges all images; or a run folder, whose val and test images are judged"
    labels.add_argument("run", metavar="SWEEP|RUN", help=text)
    text = "CSV file to write, with a row for each image, and pictures next to it (.png); default: labels.csv"
    labels.add_argument("--output", default="labels.csv", help=text)
    commands.add_parser("jobs", help="list, wait for, cancel and requeue submitted runs", add_help=False)
    stop = command("stop", "stop a run, or all trials of a sweep, with a checkpoint")
    evaluate = command("eval", "evaluate a trained network, on any number of workers")
    predict = command("predict", "predict images: a table, or a CSV file")
    text = "write the features of images, which the last layer takes, to a NumPy array"
    embed = command("embed", text)
    embed.add_argument("--output", required=True, help="array to write, NAME.npy; names of its rows: NAME.npy.csv")
    export = command("export", "write a trained network to a file for other programs, and check it")
    for subparser in (stop, evaluate, predict, embed, export):
        subparser.add_argument("run", help="run folder, or latest")
    stop.add_argument("--reason", default="lockstep stop", help="recorded in the status of the run")
    text = "default: test; of images that are not the run's, and have no test split, all"
    evaluate.add_argument("--split", choices=("test", "val", "all"), help=text)
    evaluate.add_argument("--output", help="CSV file to write: truth, prediction and loss, one row per image")
    text = "new folder for report.json, the confusion matrix, and the worst mistakes"
    evaluate.add_argument("--pictures", metavar="FOLDER", help=text)
    for subparser in (predict, embed):
        text = "image file, folder of images, or split of the run's data: val or test"
        subparser.add_argument("source", help=text)
    predict.add_argument("--output", help="CSV file to write, one row per image; default: print a table")
    text = "file to write: NAME.onnx, or NAME.pt2 for torch.export; default: network.onnx in the run folder"
    export.add_argument("--output", help=text)
    for subparser in (predict, export):
        text = "answer only where at most this fraction of the answers is wrong, such as 0.05, else unknown"
        subparser.add_argument("--max-error", type=float, metavar="RATE", help=text)
    for subparser in (evaluate, predict, embed, export, labels):
        subparser.add_argument("overrides", **data.SETTINGS, help="settings to change, such as data.root=elsewhere")
    for subparser in (predict, embed):
        subparser.add_argument("--strict", action="store_true", help="write nothing if an image cannot be read")
    for subparser in (evaluate, predict, embed, export, labels):
        subparser.add_argument("--trust", action="store_true", help=naming.TRUSTING)
        subparser.add_argument("--checkpoint", choices=("best", "last"), default="best", help="default: best")
    for subparser in (evaluate, predict):
        subparser.add_argument("--top-k", type=int, default=1, metavar="K", help="most probable classes in each row")
    for subparser in (evaluate, predict, embed, labels):
        text = "number of workers, or GPUs such as 0,2; default: as in training, on one machine"
        subparser.add_argument("--devices", metavar="N", help=text)
        subparser.add_argument("--strategy", choices=("auto", "cpu"), help="cpu: do not use GPUs")
        text = "default: float32, of a run in float64 that"
        choices = ("auto", "bfloat16", "float16", "tf32", "float32", "float64")
        subparser.add_argument("--precision", choices=choices, help=text)
        subparser.add_argument("--job", type=Path, help=argparse.SUPPRESS)  # its folder
    board = command("board", "show all runs in a browser", description="Show all runs in TensorBoard.")
    board.add_argument("--logdir", default="outputs", metavar="FOLDER", help="default: outputs")
    board.add_argument("--host", help="name or address to listen on; default: localhost, for this machine only")
    board.add_argument("--port", type=int, metavar="N", help="default: 6006, or the next free one")
    board.add_argument("--training-hosts", default="", metavar="NAMES", help="additional host names to accept")
    data.add_commands(command("data", "check and fetch images"))
    machine = command("machine", "show GPUs, cores, memory and disks")
    listed = (new, benchmark, verify, status, runs, compare, labels, stop)
    for subparser in (*listed, evaluate, predict, embed, export, machine):
        subparser.add_argument(json_output.OPTION, action="store_true", help="print one JSON value only")
    command("schema", "print a JSON Schema of the files in conf/, for editors")
    return parser


def _current_folder() -> Path:
    """Return the folder of the project: the current one, in a job the copy of it. Exits if it was removed."""
    from lockstep.config import errors
    from lockstep.config.saved import project

    if launcher.PROJECT in os.environ:
        return Path(os.environ.pop(launcher.PROJECT))
    try:
        return project.current()
    except errors.ConfigError as error:
        errors.exit_with(error)


def _enter_project() -> "Source":
    """Let this process find the modules of the project in the current folder. Returns its configuration."""
    from lockstep.config.composing import compose
    from lockstep.config.saved import project

    folder = _current_folder()
    project.enter(folder, None)
    return compose.source_of(folder)


def _run(arguments: argparse.Namespace) -> int:
    """Run a command with what it needs, which others do not import. Returns the exit code."""
    match arguments.command:
        case "new":
            return _new(_current_folder() / arguments.path)
        case "benchmark":
            source = _enter_project()
            if arguments.is_help:
                from lockstep.cli.help import show_benchmark

                show_benchmark(source)
                return 0
            from lockstep.benchmark.command import run_benchmark

            return run_benchmark(arguments.overrides, source)
        case "verify":
            source = _enter_project()
            from lockstep.verify.command import run_verification

            return run_verification(arguments.overrides, source, is_by_bits=arguments.bits)
        case "model":
            from lockstep.cli.model import show_model

            return show_model(arguments.overrides, _enter_project(), depth=arguments.depth)
        case "status":
            return _status(arguments.run, is_json=arguments.json)
        case "runs":
            return _runs(arguments)
        case "compare":
            return _compare(arguments.runs, is_json=arguments.json)
        case "stop":
            from lockstep.cluster.stopping import stop

            return stop(arguments.run, arguments.reason)
        case "eval" | "predict" | "embed" | "labels":
            from lockstep.cli.inference import infer

            return infer(arguments, _current_folder())
        case "export":
            from lockstep.cli.export import run_export

            return run_export(arguments, _current_folder())
        case "board":
            return _board(arguments)
        case "data":
            return data.run_data_command(arguments, _enter_project())
        case "schema":
            from lockstep.cli.schema import show_schema

            return show_schema(_current_folder())
        case _:
            from lockstep.cli.machine import show_machine

            return show_machine(is_json=arguments.json)


def _new(path: Path) -> int:
    from lockstep.starter.project import create

    requirement = create(path)
    answer({"path": str(path), "requirement": requirement})
    print(
        f"{quote_path(path)} is a project with its own images, network and task:\n"
        f"  cd {quote_path(path)}\n"
        "  make train    # or without installing it: lockstep train\n"
        "  make test\n"
        f"Its pyproject.toml requires {requirement}"
    )
    return 0


def _status(run: str, *, is_json: bool) -> int:
    if (Path(run) / SWEEP).is_file():
        from lockstep.sweeps.views import show_sweep

        return show_sweep(Path(run).resolve(), is_json=is_json)
    from lockstep.monitoring.status import show_status

    return show_status(naming.find(run), is_json=is_json)


def _runs(arguments: argparse.Namespace) -> int:
    from lockstep.monitoring.table import show_runs

    return show_runs(arguments.folder, sort=arguments.sort, is_json=arguments.json)


def _compare(names: Sequence[str], *, is_json: bool) -> int:
    if any((Path(name.partition(":")[0]) / SWEEP).is_file() for name in names):
        from lockstep.trials.comparison import compare_sweeps as compare
    else:
        from lockstep.monitoring.comparison import compare_runs as compare
    return compare(names, is_json=is_json)


def _board(arguments: argparse.Namespace) -> int:
    try:
        from lockstep.board.command import serve_board

        return serve_board(Path(arguments.logdir), arguments.host, arguments.port, arguments.training_hosts)
    except KeyboardInterrupt:  # ends it, also while it starts
        return 0


if __name__ == "__main__":
    main()
