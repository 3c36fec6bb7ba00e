"""A file server with listings of folders."""

from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar


class Handler(SimpleHTTPRequestHandler):
    """Refuses URLs that do not end with `signature`."""

    broken: ClassVar[set[str]] = set()
    signature: ClassVar[str] = ""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def parse_request(self) -> bool:
        is_read = super().parse_request()
        if is_read and not self.path.endswith(self.signature):
            self.send_error(403)
        return is_read and self.path.endswith(self.signature)

    def do_GET(self) -> None:
        if self.path in self.broken:
            self.send_error(500)
            return
        if "Range" in self.headers:
            self._send_range()
            return
        super().do_GET()

    def _send_range(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        content = Path(self.translate_path(self.path)).read_bytes()
        part = content[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)
