"""The `lockstep` command; also `python -m lockstep`."""

from typing import NoReturn

from lockstep.cli import entry


def main() -> NoReturn:
    """Entry point of the `lockstep` command."""
    entry.begin()
    # after the handlers, which may receive a signal during these imports
    from lockstep.cli.main import main

    main()


if __name__ == "__main__":
    main()
