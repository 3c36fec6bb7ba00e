"""Starts the workers of a job on this machine, forwards signals, and reports how they ended.

It never imports torch, and changes no environment variable. The elastic agent of torch is not used,
because it kills the other workers when one exits with a nonzero code. A stop (code 75) would then
kill ranks that still write.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from lockstep.launch import child, worker
from lockstep.launch.worker import Job
from lockstep.runs import heartbeat
from lockstep.runs.files import open_regular, write_atomically
from lockstep.runs.folder import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, GRACE_S
from lockstep.system.hardware import num_cores
from lockstep.system.processes import UNKNOWN_END, ServerDied
from lockstep.system.signals import (
    LEAVE,
    SignalList,
    block_signals,
    is_main_thread,
    report_end,
    restore_signals,
)

POLL_S = 0.05


def run_workers(
    job: Job,
    num_workers: int,
    signals: SignalList | None = None,
    *,
    is_parallel: bool = True,
    log: Path | None = None,
) -> int:
    """Run the job in `num_workers` processes of this machine, and return their common exit code.

    Without `is_parallel` one worker computes without a process group. Under a debugger that worker
    is this process. `signals` has the signals that were received before.
    """
    signals = signals or SignalList()
    if not is_parallel and sys.gettrace() is not None:
        return worker.run_here(job, None)
    workers = Workers(job, num_workers, is_parallel=is_parallel, log=log)
    with signals.handle_signals(), workers.suspend_together():
        try:
            workers.start(os.environ)
            while (code := workers.poll(POLL_S)) is None:
                workers.forward(signals.numbers)
            return code
        finally:
            workers.kill()


class Workers:
    """The worker processes of a job. The caller must `kill` those that are left.

    Rank 0 prints where this process prints, or to `log`. The others print to rank<r>.log in the run
    folder. When a rank fails, the others are killed after a grace time, and the first failure is
    reported.
    """

    def __init__(
        self, job: Job, num_workers: int, *, is_parallel: bool, log: Path | None = None
    ) -> None:
        self._job = job
        self._log = log
        self._num_workers = num_workers
        self._is_parallel = is_parallel
        self._forwarded: list[int] = []
        self._aborted_by = ""
        self._deadline_s = float("inf")
        self._first_failed: int | None = None
        self._processes: list[BaseProcess] = []

    def start(self, environ: Mapping[str, str]) -> None:
        """Start all workers.

        Rank 0 inherits the socket on which it opens the store that connects the ranks.
        """
        try:
            # Signals wait until all workers have started.
            with block_signals(), socket.socket() as listener:
                # Rank 0 listens later, and the others retry until then.
                listener.bind(("127.0.0.1", 0))
                for rank in range(self._num_workers):
                    variables, store_listener = dict(environ), None
                    log = self._job.folder.rank_log(rank) if rank else self._log
                    if self._is_parallel:
                        store_listener = None if rank else listener
                        variables |= _rank_variables(
                            rank, self._num_workers, listener.getsockname()[1]
                        )
                        num_threads = max(1, num_cores() // self._num_workers)
                        variables.setdefault("OMP_NUM_THREADS", str(num_threads))
                    work = partial(
                        worker.take_job,
                        self._job,
                        store_listener,
                        is_parallel=self._is_parallel,
                    )
                    self._processes.append(
                        child.start(work, variables, log=log, has_input=not self._is_parallel)
                    )
        except ServerDied as error:
            self.kill()
            self._processes.clear()
            self._job.folder.record_failure(f"{error}\n")

    def poll(self, timeout_s: float) -> int | None:
        """Return the common exit code when all workers have ended.

        Otherwise wait at most `timeout_s` and return None.
        """
        if not self._processes:
            self._show_failure("the process that starts the workers has died")
            return EXIT_FAILED
        live_processes = [process for process in self._processes if process.exitcode is None]
        if self._first_failed is None:
            self._look_for_failure()
        if not live_processes:
            return self._outcome([process.exitcode or 0 for process in self._processes])
        if time.monotonic() > self._deadline_s:
            for process in live_processes:
                process.kill()
        wait([process.sentinel for process in live_processes], timeout_s)
        return None

    def forward(self, numbers: Sequence[int]) -> None:
        """Forward new signals to the workers, with SIGQUIT for a second Ctrl-C."""
        for number in list(numbers)[len(self._forwarded) :]:
            if number == LEAVE or (number == signal.SIGINT and signal.SIGINT in self._forwarded):
                self._aborted_by = self._aborted_by or (
                    "a second Ctrl-C" if number == signal.SIGINT else LEAVE.name
                )
            self._forwarded.append(number)
            if self._aborted_by or self._job.ends_at_first_signal:
                self._deadline_s = min(self._deadline_s, time.monotonic() + GRACE_S)
            self._send(LEAVE if self._aborted_by else number)

    @contextmanager
    def suspend_together(self) -> Iterator[None]:
        """Forward Ctrl-Z and `fg` to the workers, which are in another process group."""

        def suspend(number: int, frame: FrameType | None) -> None:
            self._send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._send(signal.SIGCONT)

        with restore_signals():
            if is_main_thread():
                signal.signal(signal.SIGTSTP, suspend)
            yield

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.exitcode is None and process.pid is not None:
                with suppress(ProcessLookupError):  # The process has just ended.
                    os.kill(process.pid, number)

    def _look_for_failure(self) -> None:
        """Find the rank that failed first.

        A rank that died by a signal comes before those that failed because of it.
        """
        ends = [(rank, process.exitcode) for rank, process in enumerate(self._processes)]
        failures = [(rank, code) for rank, code in ends if code not in (None, 0, EXIT_STOPPED)]
        if failures:
            self._first_failed, code = min(failures, key=lambda end: end[1] >= 0)
            self._deadline_s = min(self._deadline_s, time.monotonic() + GRACE_S)
            if code < 0 and not self._aborted_by:
                self._record_death(self._first_failed, code)
            elif code == UNKNOWN_END:
                self._job.folder.record_failure(
                    "The process that started the workers was killed (kill -9, or out of memory), "
                    "or your code ended a worker "
                    f"with exit code {code}: correct that, or use less memory\n"
                )

    def _record_death(self, rank: int, code: int) -> None:
        """Write the death of a rank to failure.txt, in place of the errors that it caused.

        Print it if that fails.
        """
        report = heartbeat.end_of(
            self._job.folder, rank, f"rank {rank} of {self._num_workers}", code
        )
        try:
            write_atomically(self._job.folder.failure, report)
        except OSError:
            print(report, end="", file=sys.stderr, flush=True)

    def _outcome(self, codes: Sequence[int]) -> int:
        if self._aborted_by and (min(codes) < 0 or EXIT_INTERRUPTED in codes):
            return worker.end_aborted(self._job, self._aborted_by, updates_status=True)
        if self._forwarded and self._job.ends_at_first_signal:
            code = 128 + self._forwarded[0]
            if code in codes or -signal.SIGKILL in codes:
                report_end(self._forwarded[0])
                return code
        if self._first_failed is None:
            return EXIT_STOPPED if EXIT_STOPPED in codes else 0
        code = codes[self._first_failed]
        if code == EXIT_INTERRUPTED:
            return code
        if not worker.refusal_errors(self._job):
            self._show_failure(
                f"rank {self._first_failed} of {self._num_workers} exited with code {code}, "
                "without an error message"
            )
        if code == EXIT_CONFIG:
            return code
        return 128 - code if code < 0 and not self._is_parallel else EXIT_FAILED

    def _show_failure(self, end: str) -> None:
        """Print the first failure, or `end` if none was recorded, where rank 0 prints."""
        with open(self._log, "a", opener=open_regular) if self._log else nullcontext() as out:
            worker.show_failure(self._job, end, out)

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for rank, process in enumerate(self._processes):
            process.join()
            # A killed rank could not remove its heartbeat.
            heartbeat.forget(self._job.folder, rank)


def _rank_variables(rank: int, num_workers: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(num_workers),
        "LOCAL_WORLD_SIZE": str(num_workers),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "lockstep",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # Rank 0 opens the store.
    }
