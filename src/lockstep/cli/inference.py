"""Implements `lockstep eval`, `predict`, `embed` and `labels`.

They compute in workers on this machine, in a launcher's processes, or as a job.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from lockstep.assembly import checkpoints, refusals
from lockstep.cli import results
from lockstep.config import saved_run
from lockstep.config.checks import data_presence
from lockstep.config.checks.workers import resolve_workers
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, config_error, exit_with
from lockstep.config.saved import config_file, project, trust
from lockstep.config.schema.configuration import Config
from lockstep.config.schema.key_scopes import scope
from lockstep.config.schema.sections import Scope
from lockstep.inference import tasks
from lockstep.inference.options import (
    EmbedOptions,
    EvalOptions,
    LabelsOptions,
    Options,
    PredictOptions,
    TrainedRun,
)
from lockstep.launch import parent, worker
from lockstep.launch.worker import Job, Task
from lockstep.runs import naming, permissions
from lockstep.runs.folder import SWEEP, RunFolder
from lockstep.system.launcher import outer_world
from lockstep.trials.members import members

# These overrides have no effect on a trained network.
OF_A_TRAINING = ("hydra.", "resume=", "init_from=", "trainer.precision=")
# The command of a job repeats these options.
VALUES = (
    *("split", "output", "pictures", "top_k", "max_error", "checkpoint"),
    *("devices", "strategy", "precision", "job"),
)


def infer(arguments: argparse.Namespace, current: Path) -> int:
    """Evaluate a run, predict, embed or judge labels with it, in the project `current`.

    Returns the exit code.
    """
    task, read_options = COMMANDS[arguments.command]
    options = read_options(arguments)
    try:
        refuse_training_overrides(arguments.overrides, "use --precision")
        reads_data = vars(arguments).get("source", "test") in ("val", "test")
        trained, source = open_run(arguments, current, reads_data=reads_data)
        devices, world = _devices(arguments.devices), outer_world(os.environ)
        adapted_config = saved_run.adapt_to_machine(
            trained.config,
            devices=devices,
            strategy=arguments.strategy,
            world=world,
            precision=arguments.precision,
        )
        may_differ = False
        if isinstance(options, EvalOptions):
            adapted_config, may_differ = saved_run.replace_images(
                adapted_config, arguments.overrides
            )
        config = saved_run.change_run(
            trained.folder, adapted_config, arguments.overrides, source
        ).config
        if config.cluster.name != "none":
            run = trained.folder.path
            if trained.other_folders or getattr(options, "predictions", []):
                run = next((path for path in run.parents if (path / SWEEP).is_file()), run)
            return _submit(arguments, str(run), config)
        may_differ = may_differ and config.changed_data == "refuse"
        if isinstance(options, EvalOptions):
            options = replace(options, may_differ=may_differ)
        if reads_data and not may_differ:
            data_presence.check(config.data)
        return _compute(task, replace(trained, config=config), options, arguments.job)
    except ConfigError as error:
        exit_with(error)


def refuse_training_overrides(overrides: list[str], precision_hint: str) -> None:
    """Raise ConfigError for an override that only a training accepts."""
    for line in overrides:
        if line.lstrip("+~").startswith(OF_A_TRAINING):
            hint = precision_hint if "precision" in line else "remove it"
            raise config_error(
                "conflict", line, "is for a training, which this command does not start", hint
            )


def open_run(
    arguments: argparse.Namespace, current: Path, *, reads_data: bool = True
) -> tuple[TrainedRun, compose.Source]:
    """Return a run with its checkpoint and saved configuration, and its modules.

    They are those for the project in the folder `current`. Commands with --flip also take a sweep,
    whose networks they average.
    """
    is_flipped = "flip" in arguments and arguments.flip
    if "flip" in arguments:
        folders, average = members(arguments.run, is_flipped=is_flipped)
    else:
        folders, average = [naming.find(arguments.run)], ""
    if not arguments.trust:
        for run in folders:
            permissions.need_readable(run)
    folder, *others = folders
    checkpoint = folder.path  # No checkpoint is loaded.
    if arguments.checkpoint is not None:
        checkpoint, *_ = [
            checkpoints.requested_checkpoint(run, arguments.checkpoint, option="--checkpoint {}")
            for run in folders
        ]
    saved_config = config_file.load_for_inference(folder.config)
    project.enter(current, None if arguments.trust else folder)
    source = compose.source_of(current)
    settings = (*trust.VARIABLES, *(trust.PATHS if reads_data else ()))
    trust.check(
        folder,
        saved_config,
        source,
        arguments.overrides,
        is_trusted=arguments.trust,
        settings=settings,
    )
    return TrainedRun(folder, checkpoint, saved_config, tuple(others), is_flipped, average), source


def _evaluation(arguments: argparse.Namespace) -> EvalOptions:
    if arguments.output is None and arguments.top_k != 1:
        raise ValueError(
            f"--top-k {arguments.top_k} has no rows to be written to: add --output rows.csv."
        )
    return EvalOptions(
        arguments.split,
        top_k=_top_k(arguments),
        output=_output(arguments.output),
        pictures=_pictures(arguments.pictures),
    )


def _prediction(arguments: argparse.Namespace) -> PredictOptions:
    return PredictOptions(
        _source(arguments),
        _output(arguments.output),
        arguments.strict,
        top_k=_top_k(arguments),
        max_error=arguments.max_error,
        is_json=arguments.json,
    )


def _embedding(arguments: argparse.Namespace) -> EmbedOptions:
    if not arguments.output.endswith(".npy"):
        raise ValueError(f"--output {arguments.output} is not named as an array: use features.npy.")
    _output(f"{arguments.output}.csv")  # The CSV file has the names of the rows.
    source, output = _source(arguments), _output(arguments.output)
    assert output is not None
    return EmbedOptions(source, output, arguments.strict)


def _judgment(arguments: argparse.Namespace) -> LabelsOptions:
    """Return the options of a command that judges labels.

    A sweep is replaced by one of its runs, with the files of predictions of all folds. Raises
    ValueError for an output that exists or cannot be written.
    """
    output = Path(arguments.output).resolve()
    if output.suffix != ".csv":
        raise ValueError(f"--output {arguments.output} is not named as a CSV file: use labels.csv.")
    for path in filter(Path.exists, (output, output.with_suffix(".png"))):
        raise ValueError(
            f"--output: {naming.display_path(path)} exists: remove it, or name another file."
        )
    need_writable("--output", arguments.output)
    if not (Path(arguments.run) / SWEEP).is_file():
        return LabelsOptions(output, [])
    from lockstep.trials import out_of_fold

    folds = out_of_fold.folds_of_best_setting(Path(arguments.run).resolve())
    arguments.run = str(folds[0].path)
    # The command then only draws, which needs one worker and no checkpoint.
    arguments.devices, arguments.checkpoint = "1", None
    return LabelsOptions(output, [fold.fold_rows for fold in folds])


def _source(arguments: argparse.Namespace) -> str:
    """Return a split of the run, or the absolute path of a file or folder.

    Raises FileNotFoundError if the path does not exist.
    """
    if arguments.source not in ("val", "test"):
        if not Path(arguments.source).exists():
            raise FileNotFoundError(
                f"{arguments.source} does not exist: give a folder or file of images, val or test."
            )
        arguments.source = str(Path(arguments.source).resolve())
    return arguments.source


def _top_k(arguments: argparse.Namespace) -> int:
    if arguments.top_k < 1:
        raise ValueError(f"--top-k {arguments.top_k} is not a number of classes: use 1 or more.")
    return arguments.top_k


def _output(path: str | None) -> Path | None:
    if path is None:
        return None
    output = Path(path).resolve()
    if output.is_dir():
        raise ValueError(f"--output {path} is a folder: name a file in it.")
    need_writable("--output", path)
    return output


def _pictures(path: str | None) -> Path | None:
    """Return the absolute path of the folder for the images of an evaluation.

    Raises ValueError unless the folder is new or empty.
    """
    if path is None:
        return None
    folder = Path(path).resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--pictures {path} is not empty: name a new folder.")
    need_writable("--pictures", path)
    return folder


def need_writable(option: str, path: str) -> None:
    """Raise ValueError if a file or folder cannot be created."""
    if (error := refusals.write_obstacle(Path(path).resolve().parent)) is not None:
        raise ValueError(f"{option} {path}: {error}.")


def _devices(devices: str | None) -> int | list[int] | None:
    if devices is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*,?", devices):
        raise ValueError(
            f"--devices {devices} is neither a number of workers nor a list of GPUs such as 0,2."
        )
    if "," not in devices:
        return int(devices)
    return [int(number) for number in devices.split(",") if number]


def _compute(task: Task, trained_run: TrainedRun, options: Options, job: Path | None) -> int:
    """Run a task in workers on this machine, or as a rank of a launcher.

    Logs are in the folder of the `job`, or in a temporary one. For a launcher, the temporary folder
    is in outputs/, which all machines see. Returns the exit code.
    """
    world, job_folder = outer_world(os.environ), RunFolder(job) if job is not None else None
    if job_folder is not None and (world is None or world.rank == 0):
        # The folder still records the end of this job before it was requeued.
        job_folder.forget_end()
    request = {"trained": trained_run, "options": options}
    workers = resolve_workers(trained_run.config)
    if world is None:
        num_workers = workers.world_size
        with tempfile.TemporaryDirectory(prefix="lockstep-") as path:
            folder = job_folder or RunFolder(Path(path))
            code = parent.run_workers(
                Job(task, folder, request),
                num_workers,
                is_parallel=num_workers > 1,
            )
            results.end_task(folder)
        return code
    worker.import_training()
    from lockstep.assembly.process_group import connect_ranks, shared_folder

    connect_ranks(trained_run.config, workers, world, job_folder)
    if job_folder is not None:
        logs = nullcontext(job_folder)
    else:
        logs = shared_folder(_temporary_logs(task), trained_run.config, world)
    with logs as folder:
        code = worker.run_here(Job(task, folder, request), world)
        if world.rank == 0:
            results.end_task(folder)
    return code


@contextmanager
def _temporary_logs(task: Task) -> Iterator[RunFolder]:
    """Create a folder in outputs/ for the logs of a task, and remove it at the end.

    Raises ConfigError if outputs/ cannot be written.
    """
    outputs = Path("outputs").resolve()
    if (error := refusals.write_obstacle(outputs)) is not None:
        raise ConfigError(error)
    outputs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{task.__name__}-",
        dir=outputs,
        # Other processes may still write their logs.
        ignore_cleanup_errors=True,
    ) as path:
        yield RunFolder(Path(path))


def _submit(arguments: argparse.Namespace, run: str, config: Config) -> int:
    """Submit the command as a job in a new folder below outputs/.

    `run` is the run that the command uses, or the sweep that contains it. Returns the exit code.
    """
    from lockstep.cluster import submission

    def arguments_in(folder: RunFolder) -> list[str]:
        options = vars(arguments) | {"job": folder.path}
        if config.cluster.name == "slurm":
            options["devices"] = resolve_workers(config).num_local
        words = [arguments.command, run]
        if arguments.command in ("predict", "embed"):
            words.append(arguments.source)
        for key in VALUES:
            if options.get(key) is not None:
                words.append(f"--{key.replace('_', '-')}={options[key]}")
        words += [f"--{key}" for key in ("strict", "trust", "flip") if options.get(key)]
        for line in arguments.overrides:
            if scope(compose.parse_override(line).key_or_group) is not Scope.SUBMISSION:
                words.append(line)
        return words

    return submission.start_command(config, f"{arguments.command}_{config.run_name}", arguments_in)


COMMANDS: dict[str, tuple[Task, Callable[[argparse.Namespace], Options]]] = {
    "eval": (tasks.evaluate, _evaluation),
    "predict": (tasks.predict, _prediction),
    "embed": (tasks.embed, _embedding),
    "labels": (tasks.judge, _judgment),
}
