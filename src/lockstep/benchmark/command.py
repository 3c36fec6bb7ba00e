"""`lockstep benchmark`: trains in one environment after the other, each in its own processes, and reports the speed.

Ctrl-C stops the current run with a checkpoint, skips the rest and reports what was measured. The exit code is 130 (143
after SIGTERM), not 75, because a benchmark cannot be resumed. A second Ctrl-C exits immediately, without a report.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from lockstep.benchmark import results, step
from lockstep.benchmark.environments import Environment, Machines, available_machines, environments
from lockstep.config import overrides, saved_run
from lockstep.config.checks import data_presence
from lockstep.config.composing import compose
from lockstep.config.errors import ConfigError, Error, exit_with
from lockstep.config.saved import config_file, project
from lockstep.config.schema.configuration import BenchmarkConfig, Config
from lockstep.launch.parent import Workers
from lockstep.launch.worker import TRAIN, Job
from lockstep.runs import gate, naming
from lockstep.runs.files import answer, read_json, write_json
from lockstep.runs.folder import BENCHMARK, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, RunFolder
from lockstep.runs.naming import display_path
from lockstep.system.redaction import redact
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import duration, say, show_table, terminal
from lockstep.system.wording import plural

POLL_S = 0.25
START_S = 15.0  # a guess of the time to start an environment, for the time left
BEST = "best.ckpt"
EVALUATE = "lockstep.inference.evaluate:evaluate"
FILES = (BEST, "epoch_time.png", "report.pdf", BENCHMARK)
LOG = "terminal.log"  # the output of rank 0, in the folder of an environment
NAME = "benchmark"


def run_benchmark(texts: Sequence[str], source: compose.Source) -> int:
    try:
        typed = add_benchmark(texts)
        (config,) = overrides.check(typed, source, is_benchmark=True).configs
        assert isinstance(config, BenchmarkConfig)
        folder = compose.hydra_value("hydra.run.dir", typed, source)
        chosen = Path(folder).resolve() if folder else None
        if config.cluster.name != "none":
            return _submit(config, texts, chosen)
        if "SLURM_JOB_ID" in os.environ and "SLURMD_NODENAME" not in os.environ:  # in a shell of salloc
            step.enter([NAME, *texts])
        data_presence.check(config.data)
        built = environments(config, available_machines(os.environ))
        if all(each.config is None for each in built):
            raise ConfigError(*(Error(f"benchmark.environments.{e.name}", f": {e.skipped}") for e in built))
        if chosen is not None and any((chosen / name).exists() for name in (BENCHMARK, *config.benchmark.environments)):
            hint = "choose a new folder by hydra.run.dir, because a benchmark cannot be resumed"
            raise ConfigError(Error(display_path(chosen), "already contains a benchmark", hint))
    except ConfigError as error:
        exit_with(error)
    path = chosen or naming.create_path(Path("outputs").resolve(), NAME, datetime.now())
    try:
        return Benchmark(gate.open_new(path).path, config, built, texts).run()
    except KeyboardInterrupt:
        print(f"Interrupted; the results so far are in {display_path(path)}", file=sys.stderr)
        return EXIT_INTERRUPTED


def add_benchmark(overrides: Sequence[str]) -> list[str]:
    """Add `+benchmark=default` to the overrides of `lockstep benchmark`, unless they choose another option."""
    added = [f"+{text}" if text.startswith("benchmark=") else text for text in overrides]
    return added if any(text.startswith("+benchmark=") for text in added) else ["+benchmark=default", *added]


def _submit(config: BenchmarkConfig, texts: Sequence[str], chosen: Path | None) -> int:
    """Submit the benchmark as a job, whose folder is that of the benchmark. Returns the exit code."""
    from lockstep.cluster import submission

    machines = available_machines(os.environ)
    if config.cluster.name == "slurm":  # its default is one core
        cores, gpus = config.cluster.cpus_per_worker or 1, config.cluster.gpus_per_node or 0
        machines = Machines(cores, gpus, config.trainer.num_nodes)
    environments(config, machines)  # raises for errors of their runs

    def arguments_in(folder: RunFolder) -> list[str]:
        folder.note(overrides=redact(texts))
        replaced = re.compile(r"\+*(cluster[.=]|trainer\.num_nodes=|hydra\.run\.dir=)")
        own = ["cluster=none", "trainer.num_nodes=1", f"hydra.run.dir={naming.hydra_text(str(folder.path))}"]
        return submission.add_ignored_conf([NAME, *(text for text in texts if not replaced.match(text)), *own])

    return submission.start_command(_request(config), NAME, arguments_in, chosen=chosen, is_head=True)


def _request(config: BenchmarkConfig) -> Config:
    """Return what the job requests: a task on each machine, with all its cores and GPUs."""
    tree = config_file.to_tree(config)
    del tree["benchmark"]
    tree["trainer"] |= {"devices": 1, "loads": None}
    tree["strategy"]["name"] = "auto" if config.cluster.gpus_per_node else "cpu"
    return Config.model_validate(tree)  # its settings were checked with each environment


class Benchmark:
    """A benchmark in progress, with the records so far."""

    def __init__(
        self, path: Path, config: BenchmarkConfig, chosen_environments: Sequence[Environment], texts: Sequence[str]
    ) -> None:
        self._path = path
        self._settings = config.benchmark
        targets = {"data": config.data.target, "model": config.model.target}
        self._experiment = {key: target.rpartition(".")[2] for key, target in targets.items()} | {"name": config.name}
        self._environments = chosen_environments
        typed = RunFolder(path).read_overrides() or redact(texts)  # those of the submission, in its job
        self._command = shlex.join(["lockstep", NAME, *typed])
        self._out = terminal()
        self._flag = SignalFlag()
        self._started = datetime.now().astimezone()
        self._records: list[results.Record] = []
        self._deadline_s = 0.0  # monotonic: the expected end of the current environment and those after it

    def run(self) -> int:
        self._flag.install()
        trained = [environment for environment in self._environments if environment.config is not None]
        measured = f"{plural(len(trained), 'environment')}, {duration(self._settings.budget_s)} of training each"
        say(self._out, f"Benchmark of {measured}, in {display_path(self._path)}")
        for environment in self._environments:
            if environment.config is None:
                self._records.append(results.skipped_record(environment, environment.skipped))
            elif self._flag.received:
                self._records.append(results.skipped_record(environment, "not started before the interruption"))
            else:
                self._records.append(self._measure(environment, trained.index(environment) + 1, len(trained)))
                self._save(None)
        kept = self._keep_best()
        self._save(kept)
        self._report()
        return exit_code(self._records, self._flag.received)

    def _measure(self, environment: Environment, number: int, count: int) -> results.Record:
        """Train in an environment. If no epoch was validated, its last checkpoint becomes the best one."""
        folder = RunFolder(self._path / environment.name)
        folder.path.mkdir()
        assert environment.config is not None
        config_file.save(environment.config, folder.config)
        project.record(folder)
        head = f"[{number}/{count}] {environment.name}"
        self._deadline_s = time.monotonic() + (count - number + 1) * (self._settings.budget_s + START_S)
        command = naming.resume_command(folder.path)
        code = self._do(Job(TRAIN, str(folder.path), {"command": command, "has_test": True}), environment, head)
        is_trained = code in (0, EXIT_STOPPED) and folder.last_checkpoint.exists() and not self._flag.received
        if is_trained and results.accuracy(folder) is None:
            if not folder.best_checkpoint.exists():
                shutil.copyfile(folder.last_checkpoint, folder.best_checkpoint)
            code = self._evaluate(environment, folder, "val", f"{head}, validation")
        state, reason = "measured", ""
        if code not in (0, EXIT_STOPPED):
            state, reason = "failed", _failure(folder)
        elif self._flag.received:
            state, reason = "stopped", "interrupted"
        folder.clear_stop()
        record = results.record(environment, folder, state, reason)
        say(self._out, f"{head}: {_summary(record)}")
        return record

    def _evaluate(self, environment: Environment, folder: RunFolder, split: str, head: str) -> int:
        """Write the scores of the best checkpoint to scores.json, on this machine. Returns the exit code."""
        assert environment.config is not None
        options = {
            "config": config_file.to_tree(saved_run.adapt_to_machine(environment.config, devices=None, strategy=None)),
            "run": str(folder.path),
            "split": split,
            "checkpoint": str(folder.best_checkpoint),
        }
        here = replace(environment, num_workers=environment.num_local, num_nodes=1)
        return self._do(Job(EVALUATE, str(folder.path), options), here, head)

    def _do(self, job: Job, environment: Environment, head: str) -> int:
        """Do a job in its own processes and show its progress. Returns its exit code."""
        folder = RunFolder(Path(job.folder))
        log, is_parallel, num_nodes = folder.path / LOG, environment.is_data_parallel, environment.num_nodes
        if num_nodes > 1:
            workers = step.Step(folder, num_nodes, environment.num_local, log=log)
        else:
            workers = Workers(job, environment.num_workers, is_parallel=is_parallel, log=log)
        live = Live(console=self._out, auto_refresh=False, transient=True) if self._out.is_terminal else None
        if live is None:
            say(self._out, f"{head} ...")
        with contextlib.ExitStack() as held:
            if num_nodes == 1:  # else rank 0 locks it
                held.enter_context(folder.lock())
            held.enter_context(live or contextlib.nullcontext())
            held.callback(workers.kill)
            # replaces the caller's: environments are compared on all cores
            workers.start({**os.environ, "OMP_NUM_THREADS": str(environment.num_threads)})
            while (code := workers.poll(POLL_S)) is None:
                if self._flag.received:
                    folder.request_stop("the benchmark was interrupted")
                if live is not None:
                    left_s = max(0.0, self._deadline_s - time.monotonic())
                    line = Text(f"{head}  {_progress(folder, job)}  about {duration(left_s)} left")
                    line.truncate(self._out.width)
                    live.update(line, refresh=True)
        return code

    def _keep_best(self) -> dict[str, Any] | None:
        """Copy the most accurate network and test it; None if there is none."""
        best = results.most_accurate(self._records)
        if best is None:
            return None
        folder = RunFolder(self._path / best["name"])
        shutil.copyfile(folder.best_checkpoint, self._path / BEST)
        environment = next(environment for environment in self._environments if environment.name == best["name"])
        kept = {
            "environment": best["name"],
            "checkpoint": BEST,
            "val_accuracy": best["val_accuracy"],
            "command": f"lockstep eval {naming.quote_path(folder.path)}",
        }
        if self._flag.received:
            return kept
        self._deadline_s = time.monotonic() + START_S
        if self._evaluate(environment, folder, "test", f"{best['name']}, test"):
            best |= {"state": "failed", "reason": "its test: " + _failure(folder)}
        return kept | {"test_accuracy": read_json(folder.scores).get("test/accuracy")}

    def _save(self, kept: dict[str, Any] | None) -> None:
        """Write results.json; after every environment, so that nothing measured is lost."""
        facts = (RunFolder(self._path / r["name"]).fact("environment") for r in self._records)
        write_json(
            self._path / BENCHMARK,
            {
                "command": self._command,
                "date": self._started.isoformat(" ", "seconds"),
                "experiment": self._experiment,
                "settings": self._settings.model_dump(),
                "nodes": os.environ.get("SLURM_JOB_NODELIST"),
                "environment": next(filter(None, facts), {}),
                "environments": self._records,
                "kept": kept,
                "verdict": results.verdict(self._records),
            },
        )

    def _report(self) -> None:
        from lockstep.benchmark import report

        say(self._out, "")
        self._out.print(results.table(self._records))
        for line in [*results.notes(self._records), "", *results.verdict(self._records), ""]:
            say(self._out, line)
        benchmark = read_json(self._path / BENCHMARK)
        report.write(self._path, benchmark)
        answer({"path": str(self._path), **benchmark})
        files = [name for name in FILES if (self._path / name).exists()]
        rows = [*report.facts(benchmark), ("folder", display_path(self._path)), ("files", ", ".join(files))]
        show_table(report.title(benchmark), rows)


def exit_code(records: Sequence[results.Record], received: int) -> int:
    """128 + the signal that ended it, as in shells; otherwise 1 if an environment failed, else 0."""
    if received:
        return 128 + received
    return EXIT_FAILED if any(r["state"] == "failed" for r in records) else 0


def _progress(folder: RunFolder, job: Job) -> str:
    if job.task != TRAIN:
        return "evaluating"
    status = folder.read_status()
    parts = [status.get("state", "starting")]
    if "epoch" in status:
        parts.append(f"epoch {status['epoch']}/{status['max_epochs']}, step {status['step']}")
    if status.get("images_per_s"):
        parts.append(f"{status['images_per_s']:,.0f} images/s")
    return ", ".join(parts)


def _summary(record: results.Record) -> str:
    if record["state"] == "failed":
        return f"failed: {record['reason']}"
    rate, accuracy = record["images_per_s"], record["val_accuracy"]
    parts = [plural(record["epochs"], "epoch")]
    parts += [f"{rate['median']:,.0f} images/s"] if rate else []
    parts += [f"val accuracy {accuracy:.4f}"] if accuracy is not None else []
    return ", ".join([*parts, record["reason"]]).removesuffix(", ")


def _failure(folder: RunFolder) -> str:
    log = folder.path / LOG
    last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    return folder.failure_cause() or "".join(last) or f"no error was recorded, see {folder.path}"
