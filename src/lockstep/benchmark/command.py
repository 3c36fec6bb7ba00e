"""`lockstep benchmark`: trains in one environment after the other, each in its own processes, and reports the speed.

Ctrl-C stops the current run with a checkpoint, skips the rest and reports what was measured. The exit code is 130 (143
after SIGTERM), not 75, because a benchmark cannot be resumed. A second Ctrl-C exits immediately, without a report.
"""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from lockstep.benchmark import results
from lockstep.benchmark.environments import Environment, environments
from lockstep.config import compose, errors, overrides, presence, project, storage
from lockstep.config.schema import BenchmarkConfig
from lockstep.launch.parent import Workers
from lockstep.launch.worker import Job
from lockstep.runs import naming
from lockstep.runs.files import read_json, write_json
from lockstep.runs.folder import BENCHMARK, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, RunFolder
from lockstep.runs.naming import shown
from lockstep.system import hardware
from lockstep.system.redaction import redacted
from lockstep.system.signals import SignalFlag
from lockstep.system.terminal import duration, printable, show_table, terminal
from lockstep.system.wording import plural

POLL_S = 0.25
START_S = 15.0  # a guess of the time to start an environment, for the time left
BEST = "best.ckpt"
LOG = "terminal.log"  # the output of rank 0, in the folder of an environment


def run(texts: Sequence[str], source: compose.Source) -> int:
    """Benchmark the configuration of these overrides. Returns the exit code."""
    try:
        (config,) = overrides.check(overrides.benchmarked(texts), source, is_benchmark=True).configs
        assert isinstance(config, BenchmarkConfig)
        presence.check(config.data)
        chosen_environments = environments(config, hardware.num_cores(), hardware.num_visible_gpus())
        if all(environment.config is None for environment in chosen_environments):
            raise errors.ConfigError(
                [f"benchmark.environments.{skipped.name}: {skipped.skipped}" for skipped in chosen_environments]
            )
    except errors.ConfigError as error:
        errors.exit_with(error)
    path = naming.create_path(Path("outputs").resolve(), "benchmark", datetime.now())
    try:
        return Benchmark(path, config, chosen_environments, texts).run()
    except KeyboardInterrupt:
        print(f"Interrupted; the results so far are in {shown(path)}", file=sys.stderr)
        return EXIT_INTERRUPTED


class Benchmark:
    """A benchmark in progress, with the records so far."""

    def __init__(
        self, path: Path, config: BenchmarkConfig, chosen_environments: Sequence[Environment], texts: Sequence[str]
    ) -> None:
        self._path = path
        self._settings = config.benchmark
        self._experiment = {
            "data": config.data.target.rpartition(".")[2],
            "model": config.model.target.rpartition(".")[2],
            "name": config.name,
        }
        self._environments = chosen_environments
        self._command = shlex.join(["lockstep", "benchmark", *redacted(texts)])
        self._out = terminal()
        self._flag = SignalFlag()
        self._started = datetime.now().astimezone()
        self._records: list[results.Record] = []
        self._deadline_s = 0.0  # monotonic: the expected end of the current environment and those after it

    def run(self) -> int:
        """Train in all environments, then report. Returns the exit code."""
        self._flag.install()
        trained = [environment for environment in self._environments if environment.config is not None]
        budget = duration(self._settings.budget_s)
        environments = plural(len(trained), "environment")
        self._say(f"Benchmark of {environments}, {budget} of training each, in {shown(self._path)}")
        for environment in self._environments:
            if environment.config is None:
                self._records.append(results.skipped(environment, environment.skipped))
            elif self._flag.received:
                self._records.append(results.skipped(environment, "not started before the interruption"))
            else:
                self._records.append(self._measured(environment, trained.index(environment) + 1, len(trained)))
                self._save(None)
        kept = self._kept()
        self._save(kept)
        self._report()
        return exit_code(self._records, self._flag.received)

    def _measured(self, environment: Environment, number: int, count: int) -> results.Record:
        """Train in an environment. If no epoch was validated, its last checkpoint becomes the best one."""
        folder = RunFolder(self._path / environment.name)
        folder.path.mkdir()
        assert environment.config is not None
        storage.save(environment.config, folder.config)
        project.record(folder)
        head = f"[{number}/{count}] {environment.name}"
        self._deadline_s = time.monotonic() + (count - number + 1) * (self._settings.budget_s + START_S)
        command = naming.resume_command(folder.path)
        code = self._do(Job("train", str(folder.path), {"command": command, "has_test": True}), environment, head)
        is_trained = code in (0, EXIT_STOPPED) and folder.last_checkpoint.exists() and not self._flag.received
        if is_trained and results.accuracy(folder) is None:
            if not folder.best_checkpoint.exists():
                os.link(folder.last_checkpoint, folder.best_checkpoint)
            code = self._evaluate(environment, folder, "val", f"{head}, validation")
        state, reason = "measured", ""
        if code not in (0, EXIT_STOPPED):
            state, reason = "failed", _failure(folder)
        elif self._flag.received:
            state, reason = "stopped", "interrupted"
        folder.clear_stop()
        record = results.record(environment, folder, state, reason)
        self._say(f"{head}: {_summary(record)}")
        return record

    def _evaluate(self, environment: Environment, folder: RunFolder, split: str, head: str) -> int:
        """Write the scores of the best checkpoint to scores.json. Returns the exit code."""
        assert environment.config is not None
        options = {
            "config": storage.to_tree(environment.config),
            "run": str(folder.path),
            "split": split,
            "checkpoint": str(folder.best_checkpoint),
        }
        return self._do(Job("evaluate", str(folder.path), options), environment, head)

    def _do(self, job: Job, environment: Environment, head: str) -> int:
        """Do a job in its own processes and show its progress. Returns its exit code."""
        folder = RunFolder(Path(job.folder))
        log, is_parallel = folder.path / LOG, environment.is_data_parallel
        workers = Workers(job, environment.num_workers, is_parallel=is_parallel, log=log)
        live = Live(console=self._out, auto_refresh=False, transient=True) if self._out.is_terminal else None
        if live is None:
            self._say(f"{head} ...")
        with contextlib.ExitStack() as held:
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

    def _kept(self) -> dict[str, Any] | None:
        """Link to the most accurate network and test it; None if there is none."""
        best = results.most_accurate(self._records)
        if best is None:
            return None
        folder = RunFolder(self._path / best["name"])
        (self._path / BEST).symlink_to(folder.best_checkpoint.relative_to(self._path))
        environment = next(environment for environment in self._environments if environment.name == best["name"])
        kept = {
            "environment": best["name"],
            "checkpoint": BEST,
            "val_accuracy": best["val_accuracy"],
            "command": f"lockstep eval {naming.quoted(folder.path)}",
        }
        if self._flag.received:
            return kept
        self._deadline_s = time.monotonic() + START_S
        if self._evaluate(environment, folder, "test", f"{best['name']}, test"):
            best |= {"state": "failed", "reason": "its test: " + _failure(folder)}
        return kept | {"test_accuracy": read_json(folder.scores).get("test/accuracy")}

    def _save(self, kept: dict[str, Any] | None) -> None:
        """Write results.json; after every environment, so that nothing measured is lost."""
        facts = (RunFolder(self._path / r["name"]).read_environment() for r in self._records)
        write_json(
            self._path / BENCHMARK,
            {
                "command": self._command,
                "date": self._started.isoformat(" ", "seconds"),
                "experiment": self._experiment,
                "settings": self._settings.model_dump(),
                "environment": next(filter(None, facts), {}),
                "environments": self._records,
                "kept": kept,
                "verdict": results.verdict(self._records),
            },
        )

    def _report(self) -> None:
        from lockstep.benchmark import report

        self._say("")
        self._out.print(results.table(self._records))
        for line in [*results.notes(self._records), "", *results.verdict(self._records), ""]:
            self._out.print(Text(line))
        benchmark = read_json(self._path / BENCHMARK)
        report.write(self._path, benchmark)
        files = sorted(path.name for path in self._path.iterdir() if path.is_file())
        rows = [*report.facts(benchmark), ("folder", shown(self._path)), ("files", ", ".join(files))]
        show_table(report.title(benchmark), rows)

    def _say(self, text: str) -> None:
        self._out.print(Text(printable(text)), soft_wrap=True)
        sys.stdout.flush()


def exit_code(records: Sequence[results.Record], received: int) -> int:
    """128 + the signal that ended it, as in shells; otherwise 1 if an environment failed, else 0."""
    if received:
        return 128 + received
    return EXIT_FAILED if any(r["state"] == "failed" for r in records) else 0


def _progress(folder: RunFolder, job: Job) -> str:
    if job.task != "train":
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
    for path in (folder.failure, folder.path / LOG):
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        if lines:
            return lines[-1]
    return f"no error was recorded, see {folder.path}"
