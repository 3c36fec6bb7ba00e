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


def project_frames(text: str) -> list[re.Match[str]]:
    """Return the frames in `text` that belong to the user's own code.

    They are outside of Lockstep, the standard library and installed packages.
    """
    frames = FRAME.finditer(text)
    return [
        each
        for each in frames
        if not (each["path"].startswith(LIBRARIES) or INSTALLED.search(each["path"]))
    ]


def place(frame: re.Match[str]) -> str:
    """Format a frame as net.py:12 (forward).

    The path is relative to the current folder if it is below it.
    """
    path = frame["path"].removeprefix(f"{Path.cwd()}/")
    return f"{path}:{frame['line']} ({frame['function']})"


def located(text: str, error: BaseException) -> str:
    """Append the innermost own frame of an error and its source line to `text`, if it has one."""
    where = _source("".join(traceback.format_exception(error)))
    return text.removesuffix(".") + where if where else text


def cause(text: str) -> str:
    """Return the error of a traceback in one line, with its innermost own frame.

    For a text without a traceback, returns its first line.
    """
    own = _last_project_traceback(text)
    return next(iter(_error(own or text) or text.splitlines()), "") + _source(own)


def shorten(text: str) -> str:
    """Return the essential lines of a failure.

    They are its first line, the innermost own frames of its traceback, and the error raised there.
    A traceback without such a frame is returned complete. For a text without a traceback, only its
    first paragraph is returned.
    """
    if TITLE not in text:
        return text.partition("\n\n")[0]
    own = _last_project_traceback(text)
    if not own:
        return text
    frames = [
        f"  {place(each)}\n    {each['source'] or ''}".rstrip()
        for each in project_frames(own)[-MAX_FRAMES:]
    ]
    return "\n".join([text.splitlines()[0], *frames, *_error(own)[:MAX_LINES]])


def describe(error: BaseException) -> str:
    """Return the innermost own frames of an error, or its complete traceback without one."""
    return shorten("".join(traceback.format_exception(error)))


def report(text: str, where: tuple[str, str] | None) -> str:
    """Return the lines of `text` that a failed task prints.

    For a training, `where` has its run and its failure.txt, one of which is printed, too.
    """
    short = shorten(text)
    if where is None:
        return short if TITLE in text else text
    run, failure = where
    whole = f"The whole {'traceback' if TITLE in text else 'report'}: {failure}"
    return f"{short}\n{whole}" if short != text else f"{text}\nThe run failed: {run}"


def _last_project_traceback(text: str) -> str:
    """Return the last traceback of a chain that has own frames, or "" without one."""
    parts = CHAIN.split(text) if TITLE in text else ()
    return next((each for each in reversed(parts) if project_frames(each)), "")


def _source(text: str) -> str:
    own = project_frames(text)
    return f", in {place(own[-1])}: {own[-1]['source']}" if own else ""


def _error(text: str) -> list[str]:
    """Return the lines of the error below the last traceback of a text.

    The result is empty without a traceback.
    """
    lines = text.rpartition(TITLE)[2].splitlines() if TITLE in text else ()
    return list(dropwhile(lambda line: line.startswith(" "), lines))
