"""One job, N worker processes, one outcome.

Workers are forks of the parent, which has imported what they need, or new processes (forking.py). The parent only
supervises. It holds the rendezvous store on a port it bound itself, so that no other job can take the
port; it changes no variable of its own; it passes every signal on once. A worker dies with its parent. torch's elastic
agent kills the other workers the moment one leaves with a code that is not 0, so that a stop in good order (code 75)
would lose ranks that still write; that is why it is not used here.
"""

import contextlib
import json
import os
import resource
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lockstep.config.faults import PREFIX, ConfigError
from lockstep.launch import decoding, forking
from lockstep.launch.forking import Process, can_fork, fork
from lockstep.runs import vitals
from lockstep.runs.files import write_atomically
from lockstep.runs.folder import (
    EXIT_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_STOPPED,
    GRACE_S,
    FailedElsewhere,
    RunFolder,
)
from lockstep.runs.naming import shown
from lockstep.system import output, signals
from lockstep.system.hardware import num_cores
from lockstep.system.launcher import World, outer_world
from lockstep.system.lazy_imports import lazy
from lockstep.system.process import die_with, no_garbage_collection
from lockstep.system.redaction import redacted
from lockstep.system.signals import Ended, SignalEnd, SignalFlag, SignalList, given_back, say_ended
from lockstep.training.disk import DiskFault, refusal
from lockstep.training.memory import OutOfMemory

POLL_S = 0.05
LEFT = "left at once, by {}"
ENDS = {"finished": 0, "stopped": EXIT_STOPPED}  # of a training, by its state: nothing that comes later changes them
UNSAVED = ("evaluate", "predict", "verify")  # tasks that end by the first signal: there is nothing to go on with


class Job(NamedTuple):
    """What workers do: a task on a run folder, with plain options."""

    task: str
    folder: str
    options: dict[str, Any]


def task_function(task: str) -> Callable[..., int]:
    """The function of a task; imports torch and Lightning."""
    if task == "train":
        from lockstep.training.train import train

        return train
    if task == "test":
        from lockstep.training.train import test

        return test
    if task == "evaluate":
        from lockstep.training.evaluate import evaluate

        return evaluate
    if task == "measure":
        from lockstep.training.measure import measure

        return measure
    if task == "verify":
        from lockstep.training.verification import verify

        return verify
    from lockstep.training.predict import predict

    return predict


def run_here(job: Job, world: World | None, flag: SignalFlag | None = None) -> int:
    """Do the job in this process, as one of the workers an outer launcher started, or alone. Returns the exit code.

    `flag` has the signals that came before.
    """
    flag = flag or flag_of(job.task)
    with given_back():
        code = _guarded(job, world, flag)
        if code in (EXIT_FAILED, EXIT_CONFIG) and (world is not None or not refused(job)):
            show_failure(job)
        elif flag.received and code == 128 + flag.received and job.task in UNSAVED:
            say_ended(flag.received)
        return code


def flag_of(task: str) -> SignalFlag:
    """What a task that computes does with the signals that ask it to stop."""
    return SignalEnd() if task in UNSAVED else SignalFlag()


def run_workers(job: Job, num_workers: int, flag: SignalList | None = None, *, uses_gpus: bool) -> int:
    """Do the job in `num_workers` processes of this machine. Returns their common exit code.

    Rank 0 writes to this terminal, the others to rank<r>.log in the run folder. When a rank fails the others are ended
    and the first failure is shown last. `flag` has the signals that came before.
    """
    folder = RunFolder(Path(job.folder))
    flag = flag or SignalList()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    workers: list[Process] = []
    with flag.installed():
        try:
            with signals.unthreaded():
                is_forked = can_fork(uses_gpus=uses_gpus)
                if is_forked:
                    with no_garbage_collection(), lazy():
                        task_function(job.task)
                        _import_targets(folder)
                start = _fork_worker if is_forked and can_fork(uses_gpus=uses_gpus) else _start_worker
                for rank in range(num_workers):
                    # blocked until the worker has its handlers: a stop in its first moments is neither lost nor deadly
                    with signals.blocked():
                        workers.append(start(job, folder, rank, num_workers, listener))
            store = _rendezvous_store(listener, port)  # it has threads; new workers import torch meanwhile
            first_failed = _supervise(job, workers, flag.numbers)
            del store
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
            listener.close()
            for rank in range(num_workers):  # of those that could not do so themselves
                vitals.forget(folder, rank)
    codes = [worker.wait() for worker in workers]
    if flag.received and job.task in UNSAVED and 128 + flag.received in codes:
        say_ended(flag.received)
        code = 128 + flag.received
    else:
        code = _outcome(job, codes, first_failed)
    if min(codes) < 0:
        remove_copy(job)
    return code


def remove_copy(job: Job) -> None:
    """Remove what killed workers could not, where they were asked to: the copy of their data."""
    from lockstep.config import storage, validation

    tree = job.options.get("config")
    if not tree and not RunFolder(Path(job.folder)).config.exists():
        return  # the run folder is gone: nothing says whether there is a copy
    config = validation.check_tree(tree) if tree else storage.load(RunFolder(Path(job.folder)).config)
    if getattr(config.data, "copy_remove", False):
        from lockstep.training.staging import remove_unused

        remove_unused(config.data)


def _import_targets(folder: RunFolder) -> None:
    """Import what Lockstep itself has for a run, once for all forks; what is the user's own is for the workers."""
    from lockstep.config import build, storage, targets

    if folder.config.exists():
        for _, name in targets.called(storage.to_tree(storage.load(folder.config))):
            if name.startswith("lockstep."):
                with contextlib.suppress(ImportError):  # which a worker tells of
                    build.imported(name)


def _environ(rank: int, num_workers: int, port: int) -> dict[str, str]:
    """The environment variables of a worker process."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_workers,
        "LOCAL_WORLD_SIZE": num_workers,
        "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RUN_ID": "lockstep",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is ours: no worker opens one
    }
    environ = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // num_workers)))
    return environ


def _fork_worker(job: Job, folder: RunFolder, rank: int, num_workers: int, listener: socket.socket) -> Process:
    parent = os.getpid()
    environ = _environ(rank, num_workers, listener.getsockname()[1])
    place = f"rank {rank} of {num_workers}, {shown(folder.path)}"

    def work() -> int:
        return _guarded(job, outer_world(os.environ), flag_of(job.task))

    def first() -> None:
        die_with(parent)
        listener.close()
        decoding.begin(folder, f"lockstep: decoding for {place}")

    log = folder.rank_log(rank) if rank else None
    return fork(work, environ, log=log, title=f"lockstep: {place}", first=first)


def _start_worker(job: Job, folder: RunFolder, rank: int, num_workers: int, listener: socket.socket) -> Process:
    text = json.dumps({"job": job, "parent": os.getpid(), "sys_path": sys.path, "argv": sys.argv})
    environ = _environ(rank, num_workers, listener.getsockname()[1])
    log = folder.rank_log(rank) if rank else None
    return forking.start(["lockstep.launch.spawn"], environ, log=log, message=text)


def _rendezvous_store(listener: socket.socket, port: int) -> object:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _supervise(job: Job, workers: Sequence[Process], received: list[int]) -> int | None:
    """Wait for all workers, pass signals on, end them all when one failed. Returns the rank that failed first.

    That one ended by a signal is put on record at once: the others wait for the reason of their own failure.
    """
    first_failed, deadline, num_passed = None, 0.0, 0
    while True:
        alive = [worker for worker in workers if worker.poll() is None]
        if first_failed is None:
            ends = [(rank, worker.returncode) for rank, worker in enumerate(workers)]
            failed = [(rank, code) for rank, code in ends if code not in (None, 0, EXIT_STOPPED)]
            if failed:
                first_failed, code = min(failed, key=lambda end: end[1] >= 0)
                deadline = time.monotonic() + GRACE_S
                if code < 0:
                    record_death(job, first_failed, len(workers), code)
        if not alive:
            return first_failed
        for number in received[num_passed:]:
            for worker in alive:
                worker.send_signal(number)
            num_passed += 1
        if first_failed is not None and time.monotonic() > deadline:
            for worker in alive:
                worker.kill()
        forking.await_end(alive, POLL_S)


def _outcome(job: Job, codes: list[int], first_failed: int | None) -> int:
    if first_failed is None:
        return EXIT_STOPPED if EXIT_STOPPED in codes else 0
    code = codes[first_failed]
    if code == EXIT_INTERRUPTED:
        return EXIT_INTERRUPTED
    if not refused(job):
        show_failure(job)
    return EXIT_CONFIG if code == EXIT_CONFIG else EXIT_FAILED


def record_death(job: Job, rank: int, world_size: int, code: int) -> None:
    """Keep how a signal ended a rank of this machine, in place of what others wrote, which is a consequence.

    Where the disk refuses that, it is printed.
    """
    folder = RunFolder(Path(job.folder))
    text = vitals.end_of(folder, rank, f"rank {rank} of {world_size}", code)
    try:
        write_atomically(folder.failure, text)
    except OSError:
        print(text, end="", file=sys.stderr, flush=True)
    vitals.forget(folder, rank)


def refused(job: Job) -> list[str]:
    """The errors for which a training did not begin, or did not go on; none of any other job."""
    folder = RunFolder(Path(job.folder))
    has_begun = folder.read_status().get("state", "starting") != "starting"
    if job.task != "train" or has_begun or not folder.failure.exists():
        return []
    lines = folder.failure.read_text("utf-8").splitlines()
    return [line.removeprefix(PREFIX) for line in lines] if lines[0].startswith(PREFIX) else []


def show_failure(job: Job) -> None:
    """Print the first failure of a job; the status of a run says so too."""
    folder = RunFolder(Path(job.folder))
    failure = folder.failure.read_text("utf-8").rstrip() if folder.failure.exists() else ""
    text = failure or "a worker failed without a word"
    lines = text.splitlines()
    try:
        if job.task == "train":
            # a traceback ends with what happened, everything else begins with it
            what = lines[-1 if "Traceback (most recent call last):" in lines else 0]
            folder.update_status(state="failed", reason=what)
    except OSError as error:
        refused = refusal(error, folder.path)
        text = failure or refused or text
    print(text, file=sys.stderr)
    if job.task == "train":
        print(f"The run failed: {folder.path}", file=sys.stderr, flush=True)


# -- inside a worker ---------------------------------------------------------------------------------------------------


def _guarded(job: Job, world: World | None, flag: SignalFlag) -> int:
    """Run the task; keep the traceback of a failure where the parent, or a person, finds it."""
    folder = RunFolder(Path(job.folder))
    rank, world_size = (world.rank, world.world_size) if world else (0, 1)
    lost = ""
    try:
        flag.install()
        if world and sys.platform == "linux":  # gloo aborts where connections of strangers use up the open files
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        with vitals.shown(folder, rank):
            with no_garbage_collection(), lazy():
                task = task_function(job.task)
                _keep_to_quota()
            try:
                return task(folder, world, flag, **job.options)
            except Exception as error:
                lost = _lost(error, folder, world_size)  # while this rank still shows its own life to the others
                raise
    except Ended as ended:
        return 128 + ended.number
    except ConfigError as error:
        folder.record_failure("".join(f"{PREFIX}{fault}\n" for fault in error.faults))
        return EXIT_CONFIG
    except BaseException as error:  # the border of a process: whatever it was, whoever waits for this rank reads it
        if flag.left_by:  # Lightning turns KeyboardInterrupt into sys.exit(1)
            return left_at_once(job, flag.left_by, has_record=rank == 0)
        text = redacted(f"rank {rank} of {world_size} failed:\n{traceback.format_exc()}")
        if isinstance(error, FailedElsewhere):
            folder.await_failure(GRACE_S)
        try:
            if lost:
                folder.record_failure(f"{lost}\nrank {rank} of {world_size} waited for it: {error}\n")
            folder.record_failure(f"{error}\n" if isinstance(error, OutOfMemory | DiskFault) else text)
            with open(folder.rank_log(rank), "ab") as log:
                log.write(text.encode(errors="backslashreplace"))
        except OSError:  # which `show_failure` meets, too
            if not isinstance(error, DiskFault):
                print(text, file=sys.stderr, flush=True)
        return EXIT_FAILED


def _keep_to_quota() -> None:
    """Let torch compute with the threads that a CPU quota of this process allows; it counts cores without it."""
    import torch

    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > num_cores():
        torch.set_num_threads(num_cores())


def _lost(error: BaseException, folder: RunFolder, world_size: int) -> str:
    """The ranks that this one has waited for in vain, as a person needs it; empty where the error is another one."""
    if world_size == 1:
        return ""
    from lockstep.distributed.collectives import is_lost_rank, is_missing_rank

    ranks = vitals.silent(folder) if is_lost_rank(error) else {}
    if not ranks and is_missing_rank(error) and not folder.failure.exists():
        return vitals.told_absent(vitals.absent(folder, world_size), world_size)
    return vitals.told(folder, ranks, world_size)


def left_at_once(job: Job, by: str, *, has_record: bool) -> int:
    """The exit code of a task that was left at once; where this process `has_record` of it, a training says so."""
    if job.task != "train":
        return EXIT_INTERRUPTED
    folder = RunFolder(Path(job.folder))
    state = folder.read_status().get("state")
    if state in ENDS:
        return ENDS[state]
    if has_record:
        folder.update_status(state="failed", reason=LEFT.format(by))
    return EXIT_INTERRUPTED


def _work(text: str) -> None:
    message = json.loads(text)
    die_with(message["parent"])
    output.outlive()
    sys.path[:], sys.argv[:] = message["sys_path"], message["argv"]
    job = Job(*message["job"])
    code = _guarded(job, outer_world(os.environ), flag_of(job.task))
    forking.remove_temporary()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a broken process group must not keep a failed worker alive


if __name__ == "__main__":
    _work(sys.stdin.read())
