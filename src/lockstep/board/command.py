"""`lockstep board`: TensorBoard on a folder of runs, open at the tab Training."""

import argparse
import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensorboard import default, program
from werkzeug.wrappers import Request, Response

from lockstep.board.guard import Hosts, Refusal
from lockstep.board.plugin import NAME, TrainingLoader


class _Server(program.WerkzeugServer):
    """TensorBoard's own, which says where the tab is instead of what TensorBoard is."""

    def print_serving_message(self) -> None:
        print(f"Training tab: {self.get_url()}#{NAME}  (Ctrl-C ends it)", flush=True)


def run(logdir: Path, host: str | None, port: int | None, known_hosts: str) -> int:
    """Show the runs below `logdir` until Ctrl-C. Without a port it is 6006, or the next one that is free.

    `known_hosts` are names, with commas between them, under which it answers beside those of this machine.

    Raises FileNotFoundError for a missing folder, ValueError for an address that cannot be had.
    """
    if not logdir.is_dir():
        raise FileNotFoundError(f"{logdir} is not there: train something first, or name a folder of runs by --logdir.")
    others = [plugin for plugin in default.get_plugins() if plugin is not TrainingLoader]  # where it is installed
    board = program.TensorBoard(plugins=[*others, TrainingLoader], server_class=_listen)
    board.configure(logdir=str(logdir), host=host, port=port, training_hosts=known_hosts)
    # a notice at every start, about how event files are read; `program` itself is a proxy that takes no assignment
    vars(importlib.import_module("tensorboard.program"))["_DATA_SERVER_ADVISORY_MESSAGE"] = ""
    return board.main()


def _listen(app: Callable[..., Iterable[bytes]], flags: argparse.Namespace) -> Any:
    try:
        return program.with_port_scanning(_Server)(_unframed(_known(app, Hosts(flags))), flags)
    except program.TensorBoardServerException as error:
        raise ValueError(f"{error.msg}: choose others by --host and --port.") from error


def _known(app: Callable[..., Iterable[bytes]], hosts: Hosts) -> Callable[..., Iterable[bytes]]:
    """`app`, with all tabs of TensorBoard in it, which answers under known host names alone."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            hosts.check(Request(environ))
        except Refusal as no:
            return Response(f"{no.reason}\n", no.code, mimetype="text/plain")(environ, start_response)
        return app(environ, start_response)

    return answer


def _unframed(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """`app`, which pages of other sites cannot show in a frame, where a click could be led astray."""

    def framed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, ("Content-Security-Policy", "frame-ancestors 'self'")], *rest)

        return app(environ, start)

    return framed
