"""`lockstep board`: TensorBoard on a folder of runs, open at the tab Training."""

import argparse
import functools
import hmac
import logging
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensorboard import default, program
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from lockstep.board.guard import Hosts, Refusal
from lockstep.board.plugin import NAME, TrainingLoader

NO_TOKEN = "Open the address with ?token= that stands in the terminal in which lockstep board was started."


class _Server(program.WerkzeugServer):
    """TensorBoard's own, which says where the tab is instead of what TensorBoard is."""

    token = ""

    def print_serving_message(self) -> None:
        print(f"Training tab: {self.get_url()}?token={self.token}#{NAME}  (Ctrl-C ends it)", flush=True)


class _Board(program.TensorBoard):
    def _register_info(self, server: Any) -> None:
        """Leave no note for notebooks: it lies in /tmp, where another user may have made a link of its name."""


def run(logdir: Path, host: str | None, port: int | None, known_hosts: str) -> int:
    """Show the runs below `logdir` until Ctrl-C. Without a port it is 6006, or the next one that is free.

    `known_hosts` are names, with commas between them, under which it answers beside those of this machine.

    Raises FileNotFoundError for a missing folder, ValueError for an address that cannot be had.
    """
    if not logdir.is_dir():
        raise FileNotFoundError(f"{logdir} is not there: train something first, or name a folder of runs by --logdir.")
    others = [plugin for plugin in default.get_plugins() if plugin is not TrainingLoader]  # where it is installed
    listen = functools.partial(_listen, secrets.token_urlsafe())  # no flag: TensorBoard tells of its flags
    board = _Board(plugins=[*others, TrainingLoader], server_class=listen)
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns whenever `latest` is another run
    # not TensorBoard's fast reader of event files, which answers everybody on this machine
    board.configure(
        logdir=str(logdir), host=host, port=port, training_hosts=known_hosts, training_control="on", load_fast="false"
    )
    return board.main()


def _listen(token: str, app: Callable[..., Iterable[bytes]], flags: argparse.Namespace) -> Any:
    try:
        server = program.with_port_scanning(_Server)(_unframed(_for_known(app, Hosts(flags), token)), flags)
        server.token = token
        return server
    except program.TensorBoardServerException as error:
        raise ValueError(f"{error.msg}: choose others by --host and --port.") from error


def _for_known(app: Callable[..., Iterable[bytes]], hosts: Hosts, token: str) -> Callable[..., Iterable[bytes]]:
    """`app`, with all tabs of TensorBoard in it, under known host names and for those who have the token.

    They send it in the address at first, and from then on as a cookie, whose name has the port: cookies know none.
    """

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        cookie = f"lockstep-board-{environ['SERVER_PORT']}={token}"
        try:
            hosts.check(request)
            if hmac.compare_digest(request.args.get("token", "").encode(), token.encode()):
                entered = redirect("./")
                entered.headers["Set-Cookie"] = f"{cookie}; Path=/; HttpOnly; SameSite=Strict"
                return entered(environ, start_response)
            cookies = environ.get("HTTP_COOKIE", "").split(";")
            if not any(hmac.compare_digest(given.strip().encode(), cookie.encode()) for given in cookies):
                raise Refusal(403, NO_TOKEN)
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
