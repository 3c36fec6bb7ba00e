"""Controls access to the tab Training.

TensorBoard has no login, and checks no method, host or origin. A page of another site can send
requests to a port of this machine, or put the tab into a frame. It can also point its own host name
to this machine (DNS rebinding). `Hosts` rejects that name, and `Guard` rejects the rest. The token
of `lockstep board` (command.py) keeps out other users of this machine.
"""

import argparse
import ipaddress
import socket
from urllib.parse import urlsplit

from werkzeug.wrappers import Request

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::"})
MAX_BODY_BYTES = 1024


class Refusal(Exception):
    """A rejected request, with its HTTP code and the reason for the user."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Hosts:
    """The host names under which this TensorBoard answers.

    They are those of this machine, and those that its user allowed. Someone else may have pointed
    another name to this machine, whereas an address cannot be redirected.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        self._names = LOOPBACK | {
            name.strip().lower() for name in flags.training_hosts.split(",") if name.strip()
        }
        self._has_addresses = flags.bind_all or flags.host in WILDCARDS
        if self._has_addresses:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        elif flags.host:
            self._names |= {flags.host.lower()}

    def check(self, request: Request) -> None:
        """Raise Refusal for a request to an unknown host name."""
        host_name = _host_name(request.headers.get("Host", ""))
        if host_name not in self._names and not (self._has_addresses and _is_address(host_name)):
            raise Refusal(
                403,
                f"Runs are not shown under the host name {host_name!r}. "
                "Start with --training-hosts NAME to allow it.",
            )


class Guard:
    """Decides which requests may read, and which may change anything."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.hosts = Hosts(flags)
        self._is_on = flags.training_control == "on"

    def admit(self, request: Request, *, max_bytes: int = MAX_BODY_BYTES) -> None:
        """Raise Refusal for a request that may not stop a run or write a note."""
        if reason := self.refusal(request):
            raise Refusal(403, reason)
        # No form can send this type.
        if request.mimetype != "application/json":
            raise Refusal(415, "Only application/json is accepted.")
        if not 0 < (request.content_length or 0) <= max_bytes:
            raise Refusal(413, f"A request has 1 to {max_bytes:,} bytes.")

    def refusal(self, request: Request) -> str:
        """Return why this page may change nothing, or "" if it may.

        The host must have been checked before.
        """
        if not self._is_on:
            return (
                "Stop and notes are off without a login: use lockstep board or "
                "--training_control on."
            )
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        is_same_site = request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        if not is_same_site or (
            origin is not None and origin.partition("//")[2].lower() != host.lower()
        ):
            return "The request comes from a page of another site."
        return ""


def _host_name(host: str) -> str:
    """Return the name in a Host header without its port, or "" for an invalid header."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(host_name: str) -> bool:
    try:
        ipaddress.ip_address(host_name)
    except ValueError:
        return False
    return True
