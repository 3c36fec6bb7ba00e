"""Two nodes on this machine, n1 and n2, have separate networks and host names: see nodes.sh."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.harness import PATIENCE_S

SCRIPT = Path(__file__).with_name("nodes.sh")
NOT_THERE = 3


class Nodes:
    """`addresses` by name of the node."""

    def __init__(self, folder: Path, network: str) -> None:
        self._folder = folder
        self.addresses = {"n1": f"{network}.1", "n2": f"{network}.2"}

    def start(
        self,
        node: str,
        command: Sequence[str | Path],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        log: Path,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a node, with its output in `log`."""
        with open(log, "ab") as file:
            return subprocess.Popen(
                [str(word) for word in (SCRIPT, "exec", node, *command)],
                env={**environ, "NODES_ROOT": str(self._folder)},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


@contextlib.contextmanager
def started(environ: Mapping[str, str]) -> Iterator[Nodes]:
    """Two fresh nodes; skips where there can be none."""
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-nodes-") as folder,
        kept(SCRIPT, {**environ, "NODES_ROOT": folder}) as network,
    ):
        yield Nodes(Path(folder), network)


@contextlib.contextmanager
def kept(script: Path, environ: Mapping[str, str]) -> Iterator[str]:
    """Run `script up`, yield its output, and run `script down` at the end.

    `script down` also runs if this process is killed.
    """
    # the pipe closes with this process, however it ends
    keeper = subprocess.Popen(
        ["sh", "-c", 'cat > /dev/null; exec "$0" down', script],
        env=environ,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        result = subprocess.run(
            [script, "up"], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
        )
        if result.returncode == NOT_THERE:
            pytest.skip(result.stderr.strip().splitlines()[-1])
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
        yield result.stdout.strip()
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(timeout=PATIENCE_S)
