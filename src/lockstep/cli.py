"""The commands: `python train.py` (also `lockstep train`), and those of `lockstep`, which `lockstep --help` lists."""

import argparse
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lockstep import entry, run_folder, signals
from lockstep.environment import leave, no_garbage_collection, outer_world, without_secrets
from lockstep.run_folder import EXIT_CONFIG, EXIT_FAILED, RunFolder, shown
from lockstep.sweeps.serial import Serial

if TYPE_CHECKING:
    from lockstep.config import Source

TRAIN = Path(__file__).parents[2] / "train.py"
PRUNING = """\
--prune without --state removes runs that failed, gave no signal any more or
never started, and have no checkpoint. With --state it removes all runs in these
states (stopped, pruned, finished, failed, no-signal, not-started), with checkpoints.
--filter narrows either. It lists what would go, with sizes, and asks.
Always left alone: a run that is being trained, the runs of a benchmark, a run
that holds another one that stays, and a folder that no training has ever held.
"""


# -- python train.py ---------------------------------------------------------------------------------------------------


def run(main: Callable[[], Any]) -> int:
    """Check the command line, answer --help, and hand over to Hydra's `main`. Returns the exit code."""
    global _serial
    with no_garbage_collection():
        num_jobs = _num_jobs()
        if num_jobs is None:
            return 0
    _serial = Serial(num_jobs)
    try:
        main()
        if _serial.trials and outer_world(os.environ) is None:
            _serial.test_best()
    except SystemExit as left:  # with the code of the run, or of Hydra
        if not isinstance(left.code, int):
            raise
        return left.code
    finally:
        if _serial.trials and not _serial.is_silent:
            _serial.show()
    if _serial.failed and _is_first():
        failed = ", ".join(str(folder.path) for folder in _serial.failed)
        print(f"{len(_serial.failed)} of the jobs failed: {failed}", file=sys.stderr)
    return EXIT_FAILED if _serial.failed else 0


def _num_jobs() -> int | None:
    """How many jobs Hydra is to start: --help is answered here (None), a command line with faults ends here."""
    from hydra._internal.utils import get_args_parser
    from omegaconf import OmegaConf

    from lockstep import config, overrides, project

    arguments = get_args_parser().parse_args()
    source = config.Source(
        TRAIN.parent / arguments.config_path if arguments.config_path else config.CONF,  # as Hydra reads it
        arguments.config_name or "config",
        Path(arguments.config_dir) if arguments.config_dir else None,
    )
    sweep_folder = "outputs"
    OmegaConf.register_new_resolver("sweep_folder", lambda: sweep_folder, replace=True)
    try:
        project.enter(Path(sys.path[0]))
        if arguments.help:
            from lockstep.help import show

            try:
                show(arguments.overrides, source)
            except overrides.REFUSALS:
                show(source=source)  # help is for those whose overrides are wrong, too
            return None
        if not (arguments.cfg or arguments.info or arguments.shell_completion or arguments.hydra_help):
            plan = overrides.check(
                arguments.overrides,
                conf=source.conf,
                config_name=source.name,
                added=source.added,
                is_multirun=arguments.multirun,
            )
            if arguments.multirun:
                if plan.config.cluster.name == "none":  # else the data may be where the jobs run alone
                    from lockstep import presence  # it brings numpy, which neither help nor a fault needs

                    for data in plan.data:
                        presence.check(data)
                sweep_folder = str(_sweep_folder(plan.config.sweep.name, arguments.overrides))
            if plan.config.resume is None:
                key = "hydra.sweep.dir" if arguments.multirun else "hydra.run.dir"
                _check_folder(key, sweep_folder, arguments.overrides, source)
            return plan.num_jobs
    except config.ConfigError as error:
        config.exit_with(error)
    return 1


def _check_folder(key: str, default: str, typed: Sequence[str], source: "Source") -> None:
    """Raise ConfigError where the folder of a run or sweep cannot be made: Hydra would show a traceback."""
    from lockstep import config, disk, overrides

    path = overrides.hydra_value(key, typed, source) or default
    fault = disk.unwritable(Path(path))
    if fault is not None:
        raise config.ConfigError([fault if path == default else f"{key}={path}: {fault}"])


def _sweep_folder(name: str | None, overrides: Sequence[str]) -> Path:
    """The folder of the sweep that goes on by this command, else of a new one."""
    from datetime import datetime

    from lockstep.sweeps.ledger import command_of, find

    root = Path("outputs")
    known = find(root, name, without_secrets(command_of(overrides)))
    return known or run_folder.free_path(root, name or "sweep", datetime.now())


_serial = Serial(1)  # Hydra takes only one number from a job, so how it ended is kept here


def train(cfg: Any) -> float:
    """Hydra's task: one training. Returns the monitored value, for sweepers; leaves with the exit code otherwise.

    A job of a sweep that fails does not end the sweep; it counts as not a number.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from lockstep import config as configuration
    from lockstep import runner

    hydra = HydraConfig.get()
    overrides = list(hydra.overrides.task)
    is_sweep = hydra.mode == RunMode.MULTIRUN
    chosen = None if hydra.runtime.output_dir == os.getcwd() else Path(hydra.runtime.output_dir)
    if is_sweep:
        _serial.begin(hydra.job.num, overrides, is_silent=bool(cfg.silent) or not _is_first())
        if cfg.notify.url or cfg.notify.command:  # Hydra's copy of the settings would keep what may be a token
            (Path(hydra.sweep.dir) / "multirun.yaml").unlink(missing_ok=True)
    is_submitted = cfg.cluster.name != "none"
    try:
        if cfg.resume is not None:
            from lockstep.cluster import submission  # which a new run here does not need

            folder, config = runner.resumed(cfg, overrides)
            submission.refuse_live(folder)
            _supervise(config, is_submitted=is_submitted)
            folder, code = (submission if is_submitted else runner).resume(folder, config)
        elif is_submitted:
            from lockstep.cluster import submission

            folder, code = submission.start(configuration.checked(cfg), overrides, chosen)
        else:
            has_test = not is_sweep or cfg.sweep.test == "all"
            config = configuration.checked(cfg)
            _supervise(config, is_submitted=False)
            folder, code = runner.start(config, overrides, chosen, has_test=has_test)
    except configuration.ConfigError as error:
        configuration.exit_with(error)
    if is_sweep and not is_submitted:
        _serial.end(hydra.job.num, overrides, folder, code)
    if code == 0:
        best = folder.read_summary().get("best")
        return float("nan") if best is None else float(best)
    if code == EXIT_FAILED and is_sweep:
        return float("nan")
    raise SystemExit(code)


def _supervise(config: Any, *, is_submitted: bool) -> None:
    """Have a process wait for this one, where this one computes itself, and starts no workers."""
    from lockstep import supervision, workers

    is_alone = workers.found(config).world_size == 1 and config.strategy.name != "ddp"
    if not is_submitted and (is_alone or outer_world(os.environ) is not None):
        supervision.begin()


def _is_first() -> bool:
    """Whether this process speaks: rank 0, or the only one."""
    world = outer_world(os.environ)
    return world is None or world.rank == 0


# -- lockstep ----------------------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """What `lockstep` does, also as `python -m lockstep.cli`."""
    entry.begin()
    leave(_command)


def _command() -> int:
    if sys.argv[1:2] == ["train"]:
        sys.argv = [str(TRAIN), *sys.argv[2:]]
        if not sys.flags.safe_path:
            sys.path.insert(0, str(TRAIN.parent))  # as for a script
        runpy.run_path(str(TRAIN), run_name="__main__")
        return 0
    try:
        if sys.argv[1:2] == ["jobs"]:
            signals.as_usual()
            from lockstep.cluster.commands import run

            return run(sys.argv[2:])
        arguments = _parser().parse_args(_joined(sys.argv[1:]))
        if arguments.function not in (_evaluate, _predict, _benchmark):
            signals.as_usual()
        return arguments.function(arguments)
    except (FileNotFoundError, ValueError) as error:
        print(f"lockstep: {error}", file=sys.stderr)
        return EXIT_CONFIG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lockstep", description="Train, watch and use image classifiers.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    commands.add_parser("train", help="the same as python train.py", add_help=False)
    benchmark = commands.add_parser("benchmark", help="do more workers pay here, and why?", add_help=False)
    benchmark.add_argument("overrides", nargs="*")
    benchmark.add_argument("-h", "--help", action="store_true", dest="is_help")
    benchmark.set_defaults(function=_benchmark)

    def command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=text, description=text)
        found.add_argument("run", help="run folder, or latest")
        found.set_defaults(function=function)
        return found

    _add_watching_commands(commands)
    commands.add_parser("jobs", help="what was submitted to a cluster: list, follow, cancel, ...", add_help=False)
    command(
        "stop", _stop, "ask a run, or all trials of a sweep, to stop in good order, with a checkpoint"
    ).add_argument("--reason", default="lockstep stop", help="kept in the status of the run")
    evaluate = command("eval", _evaluate, "loss and accuracy of a trained network, by any number of workers")
    evaluate.add_argument("--split", choices=("test", "val"), default="test", help="default: test")
    predict = command("predict", _predict, "classes of images, in order, as a CSV file")
    predict.add_argument("source", help="folder or file of images; or val or test, of the data of the run")
    predict.add_argument("--output", required=True, help="CSV file: file, class, probability")
    for found in (evaluate, predict):
        found.add_argument("--checkpoint", choices=("best", "last"), default="best", help="default: best")
        found.add_argument("--devices", type=int, metavar="N", help="number of workers; default: as many as trained it")
        found.add_argument("--strategy", choices=("auto", "cpu"), help="cpu: do not use GPUs")
    board = commands.add_parser("board", help="show all runs in a browser", description="TensorBoard on all runs.")
    board.add_argument("--logdir", default="outputs", metavar="FOLDER", help="default: outputs")
    board.add_argument("--host", help="name or address to listen on; default: localhost, for this machine alone")
    board.add_argument("--port", type=int, metavar="N", help="default: 6006, or the next one that is free")
    board.add_argument("--training_hosts", default="", metavar="NAMES", help="more host names under which it answers")
    board.set_defaults(function=_board)
    _add_data_commands(commands.add_parser("data", help="prepare images", description="Prepare images."))
    return parser


def _board(arguments: argparse.Namespace) -> int:
    try:
        from lockstep.board.command import run

        return run(Path(arguments.logdir), arguments.host, arguments.port, arguments.training_hosts)
    except KeyboardInterrupt:  # the way to end it, also while it starts
        return 0


def _benchmark(arguments: argparse.Namespace) -> int:
    from lockstep import project

    project.enter(TRAIN.parent)
    if arguments.is_help:
        from lockstep.help import show_benchmark

        show_benchmark()
        return 0
    from lockstep.benchmark.command import run

    return run(arguments.overrides)


def _add_watching_commands(commands: Any) -> None:
    text = "what a run is doing, and what can be done next"
    status = commands.add_parser("status", help=text, description=text)
    status.add_argument("run", nargs="?", default="latest", help="run folder, default: latest")
    status.set_defaults(function=_status)
    runs = commands.add_parser(
        "runs",
        help="all runs below a folder; also removes some",
        description="All runs below a folder, the newest first; tab-separated and whole in a pipe.",
        epilog=PRUNING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runs.add_argument("folder", nargs="?", default="outputs", help="default: outputs")
    order = "smallest first, -COLUMN: largest first; default: -started"
    runs.add_argument("--sort", metavar="COLUMN", default="-started", help=f"a head of the table; {order}")
    runs.add_argument("--reverse", action="store_true", help="turn the order around")
    runs.add_argument(
        "--filter", metavar="TEXT", default="", help="each word must occur in name, state, device or overrides"
    )
    runs.add_argument("--state", metavar="STATE,...", default="", help="only runs in these states")
    what = runs.add_mutually_exclusive_group()
    what.add_argument("--watch", action="store_true", help="anew every two seconds until Ctrl-C")
    what.add_argument("--prune", action="store_true", help="remove runs, after asking: see below")
    runs.add_argument("--yes", action="store_true", help="remove without asking")
    runs.set_defaults(function=_runs)
    text = "settings in which runs differ, and their results, side by side"
    compare = commands.add_parser("compare", help=text, description=text)
    compare.add_argument("runs", nargs="+", metavar="run", help="two or more run folders")
    compare.set_defaults(function=_compare)
    for found in (status, what, compare):
        found.add_argument("--json", action="store_true", help="as JSON")


def _joined(words: Sequence[str]) -> list[str]:
    """`--sort -best` as one word: argparse takes the minus for an option."""
    found: list[str] = []
    for word in words:
        if found and found[-1] == "--sort" and not word.startswith("--"):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _add_data_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    text = (
        "decode a folder of images ahead of the first training; the defaults are those of conf/data/image_folder.yaml"
    )
    prepare = commands.add_parser("prepare", help=text, description=text[0].upper() + text[1:] + ".")
    prepare.add_argument("root", help="folder or URL with a folder per class, or train/, val/ and test/ of them")
    prepare.add_argument(
        "--image-size", metavar="N|null", help="resize and crop to N x N pixels; null: all have one size"
    )
    prepare.add_argument("--channels", metavar="1|3", help="1: grey, 3: RGB")
    prepare.add_argument("--cache", metavar="FOLDER", help="folder that keeps the decoded images")
    prepare.set_defaults(function=_prepare)


def _status(arguments: argparse.Namespace) -> int:
    from lockstep.watching import status

    return status.show(run_folder.find(arguments.run), is_json=arguments.json)


def _runs(arguments: argparse.Namespace) -> int:
    from lockstep.watching import pruning, table
    from lockstep.watching.selection import selection

    chosen = selection(arguments.folder, arguments.filter, arguments.state)
    if arguments.prune:
        return pruning.prune(chosen, is_sure=arguments.yes)
    if arguments.yes:
        raise ValueError("--yes is for --prune: add it, or leave --yes out.")
    order = {"sort": arguments.sort, "is_reversed": arguments.reverse}
    return table.watch(chosen, **order) if arguments.watch else table.show(chosen, **order, is_json=arguments.json)


def _compare(arguments: argparse.Namespace) -> int:
    from lockstep.watching import comparison

    if len(arguments.runs) < 2:
        raise ValueError(f"compare {arguments.runs[0]} with what? Name two or more runs.")
    return comparison.show([run_folder.find(name) for name in arguments.runs], is_json=arguments.json)


def _stop(arguments: argparse.Namespace) -> int:
    if (Path(arguments.run) / run_folder.SWEEP).is_file():
        return _stop_sweep(RunFolder(Path(arguments.run)), arguments.reason)
    folder = run_folder.find(arguments.run)
    state = folder.read_status().get("state", "starting" if folder.is_locked() else "not started")
    if state not in run_folder.LIVE_STATES:
        print(f"lockstep: {shown(folder.path)} is not running: {state}", file=sys.stderr)
        return EXIT_CONFIG
    folder.request_stop(arguments.reason)
    print(f"Asked {shown(folder.path)} to stop; it saves a checkpoint first.")
    return 0


def _stop_sweep(folder: RunFolder, reason: str) -> int:
    if not folder.is_locked():
        print(f"lockstep: the sweep in {shown(folder.path)} is not running", file=sys.stderr)
        return EXIT_CONFIG
    folder.request_stop(reason)
    print(f"Asked the sweep in {shown(folder.path)} to stop; each trial saves a checkpoint first.")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    return _use(arguments, "evaluate", {"split": arguments.split})


def _predict(arguments: argparse.Namespace) -> int:
    from lockstep import disk

    source = arguments.source
    if source not in ("val", "test"):
        source = str(Path(source).resolve())
        if not Path(source).exists():
            raise FileNotFoundError(
                f"{arguments.source} is not there: give a folder or file of images, or val or test."
            )
    output = Path(arguments.output).resolve()
    if (fault := disk.unwritable(output.parent)) is not None:
        raise ValueError(f"--output {arguments.output}: {fault}.")
    return _use(arguments, "predict", {"source": source, "output": str(output)})


def _prepare(arguments: argparse.Namespace) -> int:
    from lockstep import config as configuration
    from lockstep.preparation import prepare

    changes = {name: getattr(arguments, name) for name in ("image_size", "channels", "cache")}
    try:
        return prepare(arguments.root, changes)
    except configuration.ConfigError as error:
        configuration.exit_with(error)


def _use(arguments: argparse.Namespace, task: str, options: dict[str, Any]) -> int:
    """Run a task on a checkpoint of a run. Its logs go elsewhere: the run folder belongs to the training."""
    from lockstep import checkpoints, environment, launch, presence, project, supervision, workers
    from lockstep import config as configuration

    folder = run_folder.find(arguments.run)
    checkpoint = folder.best_checkpoint if arguments.checkpoint == "best" else folder.last_checkpoint
    if not checkpoint.exists():
        raise FileNotFoundError(f"{shown(checkpoint)} is not there: has the run finished an epoch?")
    if (fault := checkpoints.damage(checkpoint)) is not None:
        other = "last" if arguments.checkpoint == "best" else "best"
        raise ValueError(f"{shown(checkpoint)} {fault}: put a copy of it back, or try --checkpoint {other}.")
    saved = configuration.load(folder.config)
    project.enter(TRAIN.parent)
    project.use(folder, saved)
    tree = configuration.to_tree(saved)
    if arguments.devices is not None:
        tree["trainer"] |= {"devices": arguments.devices, "loads": None, "num_nodes": 1}
    tree["strategy"]["interface"] = None  # of the machines that trained; here is only one
    if arguments.strategy is not None:
        tree["strategy"]["name"] = arguments.strategy
    if tree["trainer"]["precision"] == "tf32" and (
        tree["strategy"]["name"] == "cpu" or not environment.num_visible_gpus()
    ):
        tree["trainer"]["precision"] = "float32"  # a CPU computes in full what TF32 rounds
    try:
        config = configuration.check_tree(tree)
        if task == "evaluate" or options["source"] in ("val", "test"):
            presence.check(config.data)
    except configuration.ConfigError as error:
        configuration.exit_with(error)
    options |= {"config": configuration.to_tree(config), "checkpoint": str(checkpoint)}
    asked = workers.found(config)
    num_workers = asked.world_size
    if num_workers == 1:
        supervision.begin()
    listed, flag = signals.SignalList(), launch.flag_of(task)
    try:
        with (listed if num_workers > 1 else flag).installed(), tempfile.TemporaryDirectory(prefix="lockstep-") as path:
            job = launch.Job(task, path, options)
            if num_workers > 1:
                return launch.run_workers(job, num_workers, listed, uses_gpus=bool(asked.gpus))
            return supervision.run(job, None, flag)
    except signals.Ended as ended:  # before or after the work itself
        signals.say_ended(ended.number)
        return 128 + ended.number


if __name__ == "__main__":
    main()
