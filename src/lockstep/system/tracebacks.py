"""Extracts the useful parts of a traceback: the frames of the user's own code, and the error.

Such frames do not belong to a library.
"""

import os
import re
import sysconfig
import traceback
from itertools import dropwhile
from pathlib import Path

TITLE = "Traceback (most recent call last):\n"
# This text separates two tracebacks.
CHAIN = re.compile(r"\n\n(?:During handling of the above|The above) exception\b.*\n\n")
FRAME = re.compile(
    r'^ +File "(?P<path>.+)", line (?P<line>\d+),? in (?P<function>.+)(?:\n {4,}(?P<source>.+))?',
    re.MULTILINE,
)
LIBRARIES = (
    "<",
    *(f"{path}{os.sep}" for path in (sysconfig.get_path("stdlib"), Path(__file__).parents[1])),
)
INSTALLED = re.compile(r"\b(site|dist)-packages\b")
# A shortened error has at most this many frames and lines.
MAX_FRAMES = 4
MAX_LINES = 5


def project_frames(traceback_text: str) -> list[re.Match[str]]:
    """Return the frames in `traceback_text` that belong to the user's own code.

    They are outside of Lockstep, the standard library and installed packages.
    """
    return [
        frame
        for frame in FRAME.finditer(traceback_text)
        if not (frame["path"].startswith(LIBRARIES) or INSTALLED.search(frame["path"]))
    ]


def frame_location(frame: re.Match[str]) -> str:
    """Format a frame as net.py:12 (forward).

    The path is relative to the current folder if it is below it.
    """
    path = frame["path"].removeprefix(f"{Path.cwd()}/")
    return f"{path}:{frame['line']} ({frame['function']})"


def located(message: str, error: BaseException) -> str:
    """Append the innermost own frame of an error and its source line to `message`, if any.

    A message that has them already is returned as it is.
    """
    frame_text = _source("".join(traceback.format_exception(error)))
    is_new = bool(frame_text) and frame_text not in message
    return message.removesuffix(".") + frame_text if is_new else message


def cause(failure_text: str) -> str:
    """Return the error of a traceback in one line, with its innermost own frame.

    For a text without a traceback, returns its first line.
    """
    project_traceback = _last_project_traceback(failure_text)
    lines = _error(project_traceback or failure_text) or failure_text.splitlines() or [""]
    return lines[0] + _source(project_traceback)


def shorten(failure_text: str) -> str:
    """Return the essential lines of a failure.

    They are its first line, the innermost own frames of its traceback, and the error raised there.
    A traceback without such a frame is returned complete. For a text without a traceback, only its
    first paragraph is returned.
    """
    if TITLE not in failure_text:
        return failure_text.partition("\n\n")[0]
    project_traceback = _last_project_traceback(failure_text)
    if not project_traceback:
        return failure_text
    frames = [
        f"  {frame_location(frame)}\n    {frame['source'] or ''}".rstrip()
        for frame in project_frames(project_traceback)[-MAX_FRAMES:]
    ]
    return "\n".join(
        [failure_text.splitlines()[0], *frames, *_error(project_traceback)[:MAX_LINES]]
    )


def describe(error: BaseException) -> str:
    """Return the innermost own frames of an error, or its complete traceback without one."""
    return shorten("".join(traceback.format_exception(error)))


def report(failure_text: str, run_paths: tuple[str, str] | None) -> str:
    """Return the lines of `failure_text` that a failed task prints.

    For a training, `run_paths` has its run and its failure.txt, one of which is printed, too.
    """
    summary = shorten(failure_text)
    if run_paths is None:
        return summary if TITLE in failure_text else failure_text
    run, failure = run_paths
    if summary == failure_text:
        return f"{failure_text}\nThe run failed: {run}"
    content = "traceback" if TITLE in failure_text else "report"
    return f"{summary}\nThe whole {content}: {failure}"


def _last_project_traceback(failure_text: str) -> str:
    """Return the last traceback of a chain that has own frames, or "" without one."""
    tracebacks = CHAIN.split(failure_text) if TITLE in failure_text else ()
    return next(filter(project_frames, reversed(tracebacks)), "")


def _source(traceback_text: str) -> str:
    frames = project_frames(traceback_text)
    if not frames:
        return ""
    return f", in {frame_location(frames[-1])}: {frames[-1]['source']}"


def _error(failure_text: str) -> list[str]:
    """Return the lines of the error below the last traceback of a text.

    The result is empty without a traceback.
    """
    if TITLE not in failure_text:
        return []
    lines = failure_text.rpartition(TITLE)[2].splitlines()
    return list(dropwhile(lambda line: line.startswith(" "), lines))
