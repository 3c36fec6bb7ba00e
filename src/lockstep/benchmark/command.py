"""`lockstep benchmark`: trains in one environment after the other, and reports the speed.

Each environment has its own processes. Ctrl-C stops the current run with a checkpoint, skips the
rest and reports what was measured. The exit code is 130 (143 after SIGTERM), not 75, because a
benchmark cannot be resumed. A second Ctrl-C exits immediately, without a report.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from lockstep.benchmark import results, step
from lockstep.benchmark.environments import Environment, Machines, available_machines, environments
from lockstep.config import overrides, saved_run
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, config_error, exit_with
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import BenchmarkConfig
from lockstep.inference import tasks
from lockstep.inference.options import EvalOptions, TrainedRun
from lockstep.launch import parent, worker
from lockstep.runs import naming, permissions
from lockstep.runs.files import print_result, read_json, write_json
from lockstep.runs.folder import BENCHMARK, EXIT_FAILED, EXIT_STOPPED, RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.redaction import redact
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import (
    duration,
    new_table,
    print_line,
    print_table,
    show_table,
    terminal,
)

POLL_S = 0.25
LOG = "terminal.log"  # Output of rank 0, in the folder of an environment
NAME = "benchmark"
# A job of the benchmark has its own values of these settings.
OF_A_JOB = re.compile(r"\+*(cluster[.=]|trainer\.num_nodes=|hydra\.run\.dir=)")


def run_benchmark(arguments: Sequence[str], source: compose.Source) -> int:
    try:
        (job,) = overrides.check(add_benchmark(arguments), source, is_benchmark=True).jobs
        config, folder = job.config, job.folder
        assert isinstance(config, BenchmarkConfig)
        if config.cluster.name != "none":
            return _submit(config, arguments, folder)
        # This is a shell of salloc.
        if "SLURM_JOB_ID" in os.environ and "SLURMD_NODENAME" not in os.environ:
            step.enter([NAME, *arguments])
        data_presence.check(config.data)
        candidates = environments(config, available_machines(os.environ))
        if all(environment.skipped for environment in candidates):
            hint = "; ".join(f"{candidate.name} {candidate.skipped}" for candidate in candidates)
            key, problem = "benchmark.environments", "has none for this machine"
            raise config_error("machine", key, problem, hint)
        results_of = (BENCHMARK, *config.benchmark.environments)
        if folder is not None and any((folder / name).exists() for name in results_of):
            hint = "choose a new folder by hydra.run.dir, because a benchmark cannot be resumed"
            raise config_error("exists", display_path(folder), "already contains a benchmark", hint)
    except ConfigError as error:
        exit_with(error)
    path = folder or naming.create_path(Path("outputs").resolve(), NAME, datetime.now())
    return _run(permissions.open_new(path).path, config, candidates, arguments)


def add_benchmark(overrides: Sequence[str]) -> list[str]:
    """Add `+benchmark=default` to the overrides of `lockstep benchmark`.

    Does nothing if they choose another option.
    """
    new_overrides = [
        f"+{override}" if override.startswith("benchmark=") else override for override in overrides
    ]
    is_chosen = any(override.startswith("+benchmark=") for override in new_overrides)
    return new_overrides if is_chosen else ["+benchmark=default", *new_overrides]


def _submit(config: BenchmarkConfig, arguments: Sequence[str], run_dir: Path | None) -> int:
    """Submit the benchmark as a job, whose folder is that of the benchmark.

    Returns the exit code.
    """
    from lockstep.cluster import submission

    machines = available_machines(os.environ)
    if config.cluster.name == "slurm":  # The default of SLURM is one core.
        cores, gpus = config.cluster.cpus_per_worker or 1, config.cluster.gpus_per_node or 0
        machines = Machines(cores, gpus, config.trainer.num_nodes)
    environments(config, machines)  # This raises the errors of their runs.

    def arguments_in(folder: RunFolder) -> list[str]:
        folder.note(overrides=redact(arguments))
        words = [NAME, *(argument for argument in arguments if not OF_A_JOB.match(argument))]
        words += ["cluster=none", "trainer.num_nodes=1"]
        words.append(f"hydra.run.dir={naming.hydra_text(str(folder.path))}")
        return submission.add_ignored_conf(words)

    name = "auto" if config.cluster.gpus_per_node else "cpu"
    trainer = config.trainer.model_copy(update={"devices": 1, "worker_weights": None})
    strategy = config.strategy.model_copy(update={"name": name})
    return submission.start_command(
        config.model_copy(update={"trainer": trainer, "strategy": strategy}),
        NAME,
        arguments_in,
        path=run_dir,
        is_head=True,
    )


def _run(
    path: Path,
    config: BenchmarkConfig,
    chosen_environments: Sequence[Environment],
    arguments: Sequence[str],
) -> int:
    """Train in the environments and write the report.

    Returns the exit code.
    """
    from lockstep.benchmark import report

    out, flag = terminal(), SignalFlag()
    flag.install()
    benchmark = results.new_benchmark(path, config, arguments)
    records = benchmark["environments"]
    print_line(
        out,
        f"Benchmark in {display_path(path)}: {duration(config.benchmark.budget_s)} of "
        "training in each environment",
    )
    for environment in chosen_environments:
        folder = RunFolder(path / environment.name)
        if environment.skipped or flag.received:
            reason = environment.skipped or "not started before the interruption"
            record = {
                "name": environment.name,
                "device": environment.device,
                "state": "skipped",
                "reason": reason,
            }
        else:
            print_line(out, f"{environment.name} ...")
            record = _measure(environment, folder, flag)
            benchmark["environment"] = benchmark["environment"] or folder.fact("environment") or {}
        records.append(record)
        write_json(path / BENCHMARK, benchmark)
        print_line(out, results.summary(record))
    print_line(out, "")
    print_table(new_table(results.HEADS, results.rows(records), out, right=results.HEADS[1:]), out)
    print_line(out, "")
    report.write(path, benchmark)
    print_result({"path": str(path), **benchmark})
    show_table(
        f"Benchmark of {benchmark['name']}",
        [*report.facts(benchmark), ("folder", display_path(path))],
    )
    return exit_code(records, flag.received)


def _measure(environment: Environment, folder: RunFolder, flag: SignalFlag) -> results.Record:
    folder.path.mkdir()
    config_file.save(environment.config, folder.config)
    project.record(folder)
    code = _train(environment, folder, flag)
    folder.clear_stop()
    if code not in (0, EXIT_STOPPED):
        cause = folder.failure_cause() or f"see {display_path(folder.path / LOG)}"
        return results.record(environment, folder, "failed", cause)
    if flag.received:
        return results.record(environment, folder, "stopped", "interrupted")
    accuracy = _test_accuracy(environment, folder, flag)
    return results.record(environment, folder, "measured", "", accuracy)


def _test_accuracy(environment: Environment, folder: RunFolder, flag: SignalFlag) -> float | None:
    """Return the accuracy of the best weights on the test set, or None without one.

    The processes of this machine compute it as `lockstep eval` does, after the time that is
    measured.
    """
    count = environment.num_local
    config = saved_run.adapt_to_machine(environment.config, devices=count, strategy=None)
    best = folder.best_checkpoint
    checkpoint = best if best.exists() else folder.last_checkpoint
    with tempfile.TemporaryDirectory(prefix="lockstep-") as path:
        job = worker.Job(
            tasks.evaluate,
            RunFolder(Path(path)),
            {"trained": TrainedRun(folder, checkpoint, config), "options": EvalOptions("test")},
        )
        workers = parent.Workers(job, count, is_parallel=count > 1, log=folder.path / LOG)
        try:
            workers.start({**os.environ, "OMP_NUM_THREADS": str(environment.num_threads)})
            while workers.poll(POLL_S) is None and not flag.received:
                pass
        finally:
            workers.kill()
        return read_json(job.folder.scores).get("test/accuracy")


def _train(environment: Environment, folder: RunFolder, flag: SignalFlag) -> int:
    """Train in the processes of an environment.

    Returns their exit code.
    """
    log = folder.path / LOG
    with contextlib.ExitStack() as stack:
        if environment.num_nodes > 1:  # Rank 0 locks the folder.
            workers = step.Step(folder, environment.num_nodes, environment.num_local, log=log)
        else:
            options = {"command": naming.resume_command(folder.path), "has_test": False}
            count = environment.num_local
            # Even a single worker may form a process group.
            is_parallel = count > 1 or environment.config.strategy.name == "ddp"
            workers = parent.Workers(
                worker.Job(worker.train, folder, options), count, is_parallel=is_parallel, log=log
            )
            stack.enter_context(folder.lock())
        stack.callback(workers.kill)
        # This replaces the caller's value, because environments are compared on all cores.
        workers.start({**os.environ, "OMP_NUM_THREADS": str(environment.num_threads)})
        while (code := workers.poll(POLL_S)) is None:
            if flag.received:
                folder.request_stop("the benchmark was interrupted")
    return code


def exit_code(records: Sequence[results.Record], signal_number: int) -> int:
    """Return the exit code of a benchmark.

    It is 128 + the signal that ended the benchmark, as in shells. Otherwise it is 1 if an
    environment failed, else 0.
    """
    if signal_number:
        return 128 + signal_number
    return EXIT_FAILED if any(r["state"] == "failed" for r in records) else 0
