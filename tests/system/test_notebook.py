"""`lockstep.train` in a real kernel of Jupyter."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lockstep.runs.folder import RunFolder
from tests.support.harness import PATIENCE_S, SMALL, wait_until
from tests.support.trainings import is_alive

pytestmark = [pytest.mark.full, pytest.mark.processes]


def notebook(cwd: Path, monkeypatch: pytest.MonkeyPatch, *cells: str) -> NotebookClient:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # where it is set, a kernel does not show what its children print
    created: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # pyright: ignore
    return NotebookClient(created, timeout=PATIENCE_S, resources={"metadata": {"path": str(cwd)}})


def test_the_stop_button_saves_the_run_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = notebook(
        tmp_path,
        monkeypatch,
        "import lockstep, os, pathlib, sys",
        "pathlib.Path('pid').write_text(str(os.getpid()))",
        f"try: lockstep.train({[*SMALL, 'trainer.max_epochs=100000']})\n"
        "finally: pathlib.Path('torch').write_text(str('torch' in sys.modules))",
    )
    folder = RunFolder(tmp_path / "outputs" / "latest")
    pids: list[int] = []

    def interrupt() -> None:
        wait_until(lambda: folder.read_status().get("step", 0) >= 3, "some steps")
        pids.extend(int(beat.read_text().split()[1]) for beat in folder.heartbeats().values())
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGINT)  # as Jupyter does

    button = threading.Thread(target=interrupt)
    button.start()
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        client.execute()
    button.join()
    assert (folder.read_status()["state"], folder.read_status()["reason"]) == ("stopped", "signal SIGINT")
    assert folder.last_checkpoint.exists()
    assert (tmp_path / "torch").read_text() == "False", "the kernel stays without torch"
    assert len(pids) == 1
    wait_until(lambda: not is_alive(pids[0]), "the end of the worker")
