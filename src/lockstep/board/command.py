"""`lockstep board`: serves TensorBoard on a folder of runs, opened at the tab Training."""

import argparse
import functools
import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tensorboard import default, program
from tensorboard.backend.event_processing import io_wrapper
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from lockstep.board.guard import Hosts, Refusal
from lockstep.board.plugin import NAME, TrainingLoader

NO_TOKEN = "Open the address with ?token= that lockstep board printed in its terminal."
App = Callable[..., Iterable[bytes]]


class _Server(program.WerkzeugServer):
    token = ""

    def print_serving_message(self) -> None:
        print(
            f"Training tab: {self.get_url()}?token={self.token}#{NAME}  (Ctrl-C ends it)",
            flush=True,
        )


class _Board(program.TensorBoard):
    def _register_info(self, server: Any) -> None:
        """Write no file for notebooks.

        The file would be in /tmp, where another user may have placed a link.
        """


def serve_board(logdir: Path, host: str | None, port: int | None, known_hosts: str) -> int:
    """Serve the runs below `logdir` until Ctrl-C.

    Without a port, it is 6006 or the next free one. `known_hosts` are comma-separated host names to
    allow in addition to those of this machine. Raises FileNotFoundError if `logdir` does not exist.
    """
    if not logdir.is_dir():
        raise FileNotFoundError(
            f"{logdir} does not exist: train something first, or name a folder with --logdir."
        )
    # This also resolves `latest`, whose target changes.
    logdir = logdir.resolve()
    plugins = [plugin for plugin in default.get_plugins() if plugin is not TrainingLoader]
    # The token is not a flag, because TensorBoard shows its flags.
    listen = functools.partial(_listen, secrets.token_urlsafe())
    board = _Board(plugins=[*plugins, TrainingLoader], server_class=listen)
    io_wrapper.GetLogdirSubdirectories = _find_curves
    # TensorBoard's fast reader of event files is off, because its port is open to every user of the
    # machine.
    board.configure(
        logdir=str(logdir),
        host=host,
        port=port,
        training_hosts=known_hosts,
        training_control="on",
        load_fast="false",
    )
    return board.main()


def _find_curves(root: str) -> Iterator[str]:
    """Find the folders with event files.

    TensorBoard itself follows links, so that `latest` would keep the curves of an old run.
    """
    return (
        path
        for path, _, files in os.walk(root)
        if any(map(io_wrapper.IsTensorFlowEventsFile, files))
    )


def _listen(token: str, app: App, flags: argparse.Namespace) -> Any:
    try:
        server = program.with_port_scanning(_Server)(
            _forbid_frames(_restrict_hosts(app, Hosts(flags), token)), flags
        )
        server.token = token
        return server
    except program.TensorBoardServerException as error:
        raise ValueError(f"{error.msg}: choose others by --host and --port.") from error


def _restrict_hosts(app: App, hosts: Hosts, token: str) -> App:
    """Restrict `app`, all tabs of TensorBoard, to known host names and to browsers with the token.

    The first request has the token in its address, and later ones have it in a cookie. The name of
    the cookie contains the port, because cookies do not distinguish ports.
    """

    @Request.application
    def answer(request: Request) -> App:
        cookie = f"lockstep-board-{request.environ['SERVER_PORT']}={token}"
        try:
            hosts.check(request)
            if hmac.compare_digest(request.args.get("token", "").encode(), token.encode()):
                response = redirect("./")
                response.headers["Set-Cookie"] = f"{cookie}; Path=/; HttpOnly; SameSite=Strict"
                return response
            cookies = request.environ.get("HTTP_COOKIE", "").split(";")
            if not any(
                hmac.compare_digest(sent_cookie.strip().encode(), cookie.encode())
                for sent_cookie in cookies
            ):
                raise Refusal(403, NO_TOKEN)
        except Refusal as refusal:
            return Response(f"{refusal.reason}\n", refusal.code, mimetype="text/plain")
        return app

    return answer


def _forbid_frames(app: App) -> App:
    """Forbid pages of other sites to show `app` in a frame, where they could redirect a click."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(
                status, [*headers, ("Content-Security-Policy", "frame-ancestors 'self'")], *rest
            )

        return app(environ, start)

    return answer
