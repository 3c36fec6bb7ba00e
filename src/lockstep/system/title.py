"""What `ps` and `top` call a process. A fork has the words of the process that forked it, all of them the same."""

import ctypes
import sys
from pathlib import Path

PR_SET_NAME = 15
# of /proc/self/stat, counted behind the name of the program: where the words of the command line lie in memory
ARG_START, ARG_END = 45, 46


def set_title(text: str) -> None:
    """Call this process `text`: as `ps -f` shows it, and its first 15 bytes as `ps` and `top` do.

    Linux only; what does not fit in place of the words it was started with is cut. Where they are not where the kernel
    says, nothing is changed.
    """
    if sys.platform != "linux":
        return
    title = text.encode(errors="replace")
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(title[:15]), 0, 0, 0)
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_END])
        words = Path("/proc/self/cmdline").read_bytes()
    except (OSError, IndexError, ValueError):
        return
    size = end - start
    if start and len(words) == size and ctypes.string_at(start, size) == words:
        ctypes.memmove(start, title[: size - 1].ljust(size, b"\0"), size)
