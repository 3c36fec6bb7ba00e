"""The `lockstep` command; also `python -m lockstep`."""

from typing import NoReturn

from lockstep import entry


def main() -> NoReturn:
    """Entry point of the `lockstep` command."""
    entry.begin()
    from lockstep import cli  # a moment later, in which a signal is met already

    cli.main()


if __name__ == "__main__":
    main()
