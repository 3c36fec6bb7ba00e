"""`lockstep benchmark`: one environment after the other, each in its own processes, and a report of what was measured.

Ctrl-C asks the current run to stop in good order, skips the rest and reports what there is; the exit code is 130 (143
after SIGTERM), not 75: a benchmark cannot be gone on with. A second Ctrl-C leaves at once, without a report.
"""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from lockstep.benchmark import results
from lockstep.benchmark.environments import Environment, environments
from lockstep.config import compose, faults, overrides, presence, project, storage
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
from lockstep.system.terminal import duration, show_table, terminal
from lockstep.system.wording import plural

POLL_S = 0.25
START_S = 15.0  # a guess of what starting an environment takes, for the time left
BEST = "best.ckpt"
LOG = "terminal.log"  # what rank 0 prints, in the folder of an environment


def run(texts: Sequence[str], source: compose.Source) -> int:
    """Benchmark the configuration of these overrides. Returns the exit code."""
    try:
        config = _checked(overrides.benchmarked(texts), source)
        presence.check(config.data)
        chosen_environments = environments(config, hardware.num_cores(), hardware.num_visible_gpus())
        if all(environment.config is None for environment in chosen_environments):
            raise faults.ConfigError(
                [f"{p.name}: {p.skipped}: add an environment this has" for p in chosen_environments]
            )
    except faults.ConfigError as error:
        faults.exit_with(error)
    path = naming.create_path(Path("outputs").resolve(), "benchmark", datetime.now())
    try:
        return Benchmark(path, config, chosen_environments, texts).run()
    except KeyboardInterrupt:
        print(f"Left at once; what was measured before is in {shown(path)}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _checked(texts: Sequence[str], source: compose.Source) -> BenchmarkConfig:
    (config,) = overrides.check(texts, source, is_benchmark=True).configs
    assert isinstance(config, BenchmarkConfig)
    return config


class Benchmark:
    """A benchmark under way: the records so far, and whether somebody wants it to end."""

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

    def run(self) -> int:
        """All environments, then the report. Returns the exit code."""
        self._flag.install()
        trained = [environment for environment in self._environments if environment.config is not None]
        budget = duration(self._settings.budget_s)
        environments = plural(len(trained), "environment")
        self._say(f"Benchmark of {environments}, {budget} of training each, in {shown(self._path)}")
        for environment in self._environments:
            if environment.config is None:
                self._say(f"{environment.name}: skipped, {environment.skipped}")
                self._records.append(results.skipped(environment))
            elif self._flag.received:
                self._records.append(
                    results.skipped(environment) | {"reason": "not reached before the end was asked for"}
                )
            else:
                self._records.append(self._measured(environment, trained.index(environment) + 1, len(trained)))
                self._save(None)
        kept = self._kept()
        self._save(kept)
        self._report(kept)
        return exit_code(self._records, self._flag.received)

    def _measured(self, environment: Environment, number: int, count: int) -> results.Record:
        """Train in an environment, then measure its steps."""
        folder = RunFolder(self._path / environment.name)
        folder.path.mkdir()
        assert environment.config is not None
        storage.save(environment.config, folder.config)
        project.record(folder)
        head = f"[{number}/{count}] {environment.name}"
        left_s = (count - number) * (self._settings.budget_s + self._settings.probe_s + START_S)

        def left(then_s: float) -> Callable[[float], float]:
            return lambda used_s: max(0.0, then_s - used_s) + left_s

        command = naming.resume_command(folder.path)
        train = Job("train", str(folder.path), {"command": command, "has_test": True})
        probe_s = self._settings.probe_s + START_S
        code = self._do(train, environment, head, left(self._settings.budget_s + START_S + probe_s))
        state, reason = "measured", ""
        if code not in (0, EXIT_STOPPED):
            state, reason = "failed", _failure(folder)
        elif results.checkpoint(folder) is not None and not self._flag.received:
            options = {
                "num_steps": self._settings.probe_steps,
                "max_s": self._settings.probe_s,
                "checkpoint": str(_checkpoint(folder)),
            }
            code = self._do(Job("measure", str(folder.path), options), environment, f"{head}, its steps", left(probe_s))
            if code not in (0, EXIT_STOPPED):
                state, reason = "failed", "measuring its steps: " + _failure(folder)
        if self._flag.received and state == "measured":
            state, reason = "stopped", "asked to end"
        folder.clear_stop()
        record = results.record(environment, folder, state, reason)
        self._say(f"{head}: {_summary(record)}")
        return record

    def _do(self, job: Job, environment: Environment, head: str, left: Callable[[float], float]) -> int:
        """Wait for a job in its own process, showing how it goes. Returns its exit code."""
        folder, started = RunFolder(Path(job.folder)), time.monotonic()
        is_parallel = environment.is_data_parallel
        num_workers = environment.num_workers if is_parallel else 1
        workers = Workers(job, num_workers, is_parallel=is_parallel, log=folder.path / LOG)
        live = Live(console=self._out, auto_refresh=False, transient=True) if self._out.is_terminal else None
        if live is None:
            self._say(f"{head} ...")
        with contextlib.ExitStack() as held:
            held.callback(folder.remove_leftovers)  # also of an environment that was left at once
            held.enter_context(folder.lock())
            held.enter_context(live or contextlib.nullcontext())
            held.callback(workers.kill)
            # that of the caller is replaced: environments are compared at all cores
            workers.start({**os.environ, "OMP_NUM_THREADS": str(environment.num_threads)})
            while (code := workers.poll(POLL_S)) is None:
                if self._flag.received:
                    folder.request_stop("the benchmark was asked to end")
                if live is not None:
                    line = Text(
                        f"{head}  {_progress(folder, job)}  about {duration(left(time.monotonic() - started))} left"
                    )
                    line.truncate(self._out.width)
                    live.update(line, refresh=True)
        return code

    def _kept(self) -> dict[str, Any] | None:
        """Test the most accurate network once, and link to it; None where there is none."""
        best = results.most_accurate(self._records)
        if best is None:
            return None
        folder = RunFolder(self._path / best["name"])
        if best["checkpoint"] == "last":
            os.link(folder.last_checkpoint, folder.best_checkpoint)  # so that every command finds it
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
        assert environment.config is not None
        options = {
            "config": storage.to_tree(environment.config),
            "run": str(folder.path),
            "split": "test",
            "checkpoint": str(folder.best_checkpoint),
        }
        job = Job("evaluate", str(folder.path), options)
        code = self._do(job, environment, f"{best['name']}, test", lambda used_s: max(0.0, START_S - used_s))
        if code:
            best |= {"state": "failed", "reason": "its test: " + _failure(folder)}
        return kept | {"test_accuracy": read_json(folder.scores).get("test/accuracy")}

    def _save(self, kept: dict[str, Any] | None) -> None:
        """Write results.json; after every environment, so that nothing measured is lost."""
        facts = (read_json(self._path / r["name"] / "environment.json") for r in self._records)
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
                "verdict": results.words(self._records),
            },
        )

    def _report(self, kept: dict[str, Any] | None) -> None:
        from lockstep.benchmark import report

        width = self._out.width if self._out.is_terminal else 10_000
        self._say("")
        self._out.print(Text(results.table(self._records, width)), soft_wrap=True)
        for line in [*results.notes(self._records), "", *results.words(self._records), ""]:
            self._out.print(Text(results.printable(line)))
        files = report.write(self._path, read_json(self._path / BENCHMARK))
        rows = [("report", shown(path)) for path in files] + [("numbers", shown(self._path / BENCHMARK))]
        if kept is not None:
            test = f", test {kept['test_accuracy']:.4f}" if kept.get("test_accuracy") is not None else ""
            text = f"{shown(self._path / BEST)}, of {kept['environment']}: val {kept['val_accuracy']:.4f}{test}"
            rows += [("best network", text), ("evaluate", kept["command"])]
        show_table("Benchmark", rows)

    def _say(self, text: str) -> None:
        self._out.print(Text(results.printable(text)), soft_wrap=True)
        sys.stdout.flush()


def exit_code(records: Sequence[results.Record], received: int) -> int:
    """128 and the signal that ended it, as shells have it; else whether an environment failed."""
    if received:
        return 128 + received
    return EXIT_FAILED if any(r["state"] == "failed" for r in records) else 0


def _checkpoint(folder: RunFolder) -> Path:
    return folder.best_checkpoint if results.checkpoint(folder) == "best" else folder.last_checkpoint


def _progress(folder: RunFolder, job: Job) -> str:
    """What a run is doing, told from its status."""
    if job.task != "train":
        return "measuring"
    status = folder.read_status()
    parts = [status.get("state", "starting")]
    if "epoch" in status:
        parts.append(f"epoch {status['epoch']}/{status['max_epochs']}, step {status['step']}")
    if status.get("images_per_s"):
        parts.append(f"{status['images_per_s']:,.0f} images/s")
    return ", ".join(parts)


def _summary(record: results.Record) -> str:
    """An environment in a line."""
    if record["state"] == "failed":
        return f"failed: {record['reason']}"
    rate, accuracy = record["images_per_s"], record["val_accuracy"]
    parts = [plural(record["epochs"], "epoch"), plural(record["steps"], "step")]
    parts += [f"{rate['median']:,.0f} images/s"] if rate else []
    parts += [f"val accuracy {accuracy:.4f}"] if accuracy is not None else []
    return ", ".join(parts) + (f" ({record['reason']})" if record["reason"] else "")


def _failure(folder: RunFolder) -> str:
    """The last line of what went wrong in a run."""
    for path in (folder.failure, folder.path / LOG):
        lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
        if lines:
            return lines[-1]
    return f"it ended without a word, see {folder.path}"
