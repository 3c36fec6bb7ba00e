"""yaml-language-server, which editors start, over the Language Server Protocol."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

SERVER = shutil.which("yaml-language-server")
SETTINGS = {"yaml": {"completion": True, "validate": True, "schemaStore": {"enable": False}}}  # no network


class Editor:
    """An editor that opens each text as a new file, which need not be on the disk."""

    def __init__(self, to_server: IO[bytes], from_server: IO[bytes]) -> None:
        self._to, self._from = to_server, from_server
        self._num_calls = self._num_files = 0
        self._problems: dict[str, list[Any]] = {}
        self._call("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        self._send({"method": "initialized", "params": {}})
        self._send({"method": "workspace/didChangeConfiguration", "params": {"settings": SETTINGS}})

    def problems(self, folder: Path, text: str) -> list[tuple[int, str]]:
        """Return the number of the line, from 1, and the message of each problem of a file."""
        found = self._problems[self._open(folder, text)]
        return sorted((problem["range"]["start"]["line"] + 1, problem["message"]) for problem in found)

    def completions(self, folder: Path, text: str) -> list[str]:
        """Return the completions at the end of a file."""
        uri, lines = self._open(folder, text), text.split("\n")
        position = {"line": len(lines) - 1, "character": len(lines[-1])}
        found = self._call("textDocument/completion", {"textDocument": {"uri": uri}, "position": position})
        return [item["label"] for item in found["items"]]

    def _open(self, folder: Path, text: str) -> str:
        """Open a file, and wait for its problems. Returns its URI."""
        self._num_files += 1
        uri = (folder / f"new{self._num_files}.yaml").as_uri()
        document = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        while uri not in self._problems:
            self._receive()
        return uri

    def _call(self, method: str, params: Mapping[str, Any]) -> Any:
        self._num_calls += 1
        self._send({"id": self._num_calls, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._num_calls and "method" not in message:
                return message["result"]

    def _send(self, message: Mapping[str, Any]) -> None:
        content = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
        self._to.flush()

    def _receive(self) -> dict[str, Any]:
        """Return the next message, after an answer to a request, or after keeping problems."""
        size = 0
        while line := self._from.readline().strip():
            name, _, value = line.partition(b": ")
            size = int(value) if name == b"Content-Length" else size
        assert size, "the server has ended"
        message = json.loads(self._from.read(size))
        if "method" in message and "id" in message:
            items = message["params"].get("items") if message["method"] == "workspace/configuration" else None
            self._send({"id": message["id"], "result": items and [SETTINGS.get(item["section"]) for item in items]})
        elif message.get("method") == "textDocument/publishDiagnostics":
            self._problems[message["params"]["uri"]] = message["params"]["diagnostics"]
        return message


@contextmanager
def editor() -> Iterator[Editor]:
    assert SERVER is not None
    with subprocess.Popen([SERVER, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield Editor(server.stdin, server.stdout)
        finally:
            server.kill()
