"""The first moments of a command, before the imports that take most of a second."""

from lockstep.system import output, signals


def begin() -> None:
    """Let this command outlive its terminal, and end with one line by a signal while it has nothing under way."""
    output.outlive()
    signals.end_at_once()
