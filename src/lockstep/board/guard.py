"""Who may stop runs through TensorBoard, which itself has no login and asks for no method, host or origin.

A page on another site can send requests to a port of this machine, put this page into a frame, and let its own host
name point here. None of them gets further than `Guard`.
"""

import argparse
import hmac
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from werkzeug.wrappers import Request

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TOKEN_HEADER = "X-Lockstep-Token"
MAX_BODY_BYTES = 1024


class Refusal(Exception):
    """An answer that is no: its HTTP code, the reason for the person at the page, and headers."""

    def __init__(self, code: int, reason: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(reason)
        self.code, self.reason, self.headers = code, reason, headers


class Guard:
    """Lets requests that change something through, and hands out the token they must bring."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self._token = secrets.token_urlsafe(32)
        self._hosts = LOOPBACK | {name.strip().lower() for name in flags.training_hosts.split(",") if name.strip()}
        is_local = not flags.bind_all and (flags.host or "localhost") in LOOPBACK
        self._why_off = ""
        if flags.training_control == "off":
            self._why_off = "Stop is off: TensorBoard was started with --training_control off."
        elif flags.training_control == "auto" and not is_local:
            self._why_off = "Stop is off: others reach this TensorBoard. tensorboard --training_control on allows it."

    def token(self, request: Request) -> str:
        """The secret of this process, for pages of its own. Raises Refusal for others."""
        self._check_origin(request)
        return self._token

    def admit(self, request: Request) -> None:
        """Return if this page of this process may change something, raise Refusal if not."""
        self._check_origin(request)
        if request.mimetype != "application/json":  # which no form can send
            raise Refusal(415, "Only application/json is understood.")
        if not hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self._token.encode()):
            raise Refusal(403, "This page is older than its TensorBoard: load it again.")
        if not 0 < (request.content_length or 0) <= MAX_BODY_BYTES:
            raise Refusal(413, f"A request has 1 to {MAX_BODY_BYTES:,} bytes.")

    def _check_origin(self, request: Request) -> None:
        """Refuse where Stop is off, under unknown host names (DNS rebinding), and for pages of other sites."""
        if self._why_off:
            raise Refusal(403, self._why_off)
        host = request.headers.get("Host", "")
        name = _host_name(host)
        if name not in self._hosts:
            raise Refusal(
                403, f"Stop is off under the host name {name!r}. tensorboard --training_hosts NAME allows it."
            )
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
