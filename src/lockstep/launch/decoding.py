"""The process that forks decoding processes, as a fork itself: a new interpreter would import torch once more.

multiprocessing starts its fork server as a new interpreter that runs a line of Python. Here a fork of a worker runs
that line: a worker that is a fork of its parent has imported all that decodes, and has one thread in its first moments.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, util

from lockstep.config import storage
from lockstep.launch.forking import can_fork, fork
from lockstep.runs.folder import RunFolder
from lockstep.system.signals import held_back


def begin(folder: RunFolder, title: str) -> None:
    """Start that process for the run in `folder`, where its images are streamed; `title` is its name.

    To be called before this process has a second thread. Where a fork would not be sound, nothing happens: then the
    first loader starts a new interpreter.
    """
    if "torch" not in sys.modules or not folder.config.exists() or storage.load(folder.config).data.memory != "stream":
        return
    if not can_fork(uses_gpus=False):  # whatever this process computes on, decoding needs none
        return
    from lockstep.data.stream import PRELOADED

    def launched(path: bytes, words: Sequence[str], kept: Sequence[int]) -> int:
        return fork(lambda: _serve(words[-1], kept), os.environ, log=None, title=title).pid

    before = util.spawnv_passfds
    with held_back():
        util.spawnv_passfds = launched
        try:
            forkserver.set_forkserver_preload(PRELOADED)
            forkserver.ensure_running()
        finally:
            util.spawnv_passfds = before


def _serve(line: str, kept: Sequence[int]) -> int:
    """Run the line of the fork server with the files that a new interpreter would have."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(number)
    with contextlib.suppress(SystemExit):  # its end, when nobody is left who could ask it for a process
        exec(line, {})
    return 0
