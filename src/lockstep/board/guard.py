"""Who may read and stop runs through TensorBoard, which itself has no login and asks for no method, host or origin.

A page on another site can send requests to a port of this machine, put this page into a frame, and let its own host
name point here, which makes it a page of this site to the browser. `Hosts` refuses that name, `Guard` the rest. Other
users of this machine are kept out by the token of `lockstep board` (command.py).
"""

import argparse
import ipaddress
import socket
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from werkzeug.wrappers import Request

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
WILDCARDS = frozenset({"0.0.0.0", "::"})
MAX_BODY_BYTES = 1024


class Refusal(Exception):
    """An answer that is no: its HTTP code, the reason for the person at the page, and headers."""

    def __init__(self, code: int, reason: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(reason)
        self.code, self.reason, self.headers = code, reason, headers


class Hosts:
    """The names under which this TensorBoard is asked for: those of this machine, and those its user has allowed.

    Names that are not known may have been pointed here by somebody else (DNS rebinding). An address cannot be.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        self._names = LOOPBACK | {name.strip().lower() for name in flags.training_hosts.split(",") if name.strip()}
        self._has_addresses = flags.bind_all or flags.host in WILDCARDS
        if self._has_addresses:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        elif flags.host:
            self._names |= {flags.host.lower()}

    def check(self, request: Request) -> None:
        """Raise Refusal where the request names a host that is not known."""
        name = _host_name(request.headers.get("Host", ""))
        if name not in self._names and not (self._has_addresses and _is_address(name)):
            raise Refusal(
                403, f"Runs are not shown under the host name {name!r}. Start with --training_hosts NAME to allow it."
            )


class Guard:
    """Lets requests through that read under a known name, or may change something."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.hosts = Hosts(flags)
        self._is_on = flags.training_control == "on"

    def admit(self, request: Request) -> None:
        """Return if this page may change something, raise Refusal if not."""
        self.check_origin(request)
        if request.mimetype != "application/json":  # which no form can send
            raise Refusal(415, "Only application/json is understood.")
        if not 0 < (request.content_length or 0) <= MAX_BODY_BYTES:
            raise Refusal(413, f"A request has 1 to {MAX_BODY_BYTES:,} bytes.")

    def check_origin(self, request: Request) -> None:
        """Refuse where Stop is off, and pages of other sites. The host is known: `Hosts.check` comes first."""
        if not self._is_on:
            raise Refusal(403, "Stop is off: TensorBoard has no login. Use lockstep board, or --training_control on.")
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        is_same_site = request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        if not is_same_site or (origin is not None and origin.partition("//")[2].lower() != host.lower()):
            raise Refusal(403, "A page of another site asked.")


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; empty for what is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
