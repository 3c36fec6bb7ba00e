"""`python -m tests.support.notebook` executes the notebook of the docs and writes its output."""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.support.harness import PATIENCE_S, ROOT, environ

PATH = ROOT / "docs" / "start.ipynb"
RULE = "─" * 78


def stored() -> NotebookNode:
    return nbformat.read(PATH, nbformat.NO_CONVERT)


def executed(folder: Path) -> NotebookNode:
    """Return the notebook, executed in a folder.

    Each cell has the output that a person sees at the end.
    """
    notebook, variables = stored(), environ()
    # where it is set, a kernel does not show the output of its children
    variables.pop("PYTEST_CURRENT_TEST", None)
    variables["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # coalesce_streams: a line that was rewritten in place is left in its last version
    resources = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook,
        timeout=PATIENCE_S,
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    client.execute(env=variables)
    for output in (
        output for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    ):
        text = output["text"].replace("\r\n", "\n")  # of the terminal of a child
        # ipykernel decodes what a child prints by 1,000 bytes, and breaks a character of a rule
        # between two of them
        output["text"] = re.sub("[─\ufffd]{3,}", RULE, text)
    return notebook


def texts(notebook: NotebookNode) -> list[str]:
    """The output of each cell of code, without colors."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            parts = (output.get("text") or output["data"]["text/plain"] for output in cell.outputs)
            found.append(re.sub(r"\x1b\[[\d;]*m", "", "\n".join(parts)))
    return found


def shapes(notebook: NotebookNode) -> list[str]:
    """The first column of the lines of each cell, without numbers and rows of epochs."""
    found = []
    for text in texts(notebook):
        columns = (re.split(r" {2,}", line.strip())[0] for line in text.splitlines())
        found += [line for column in columns if (line := re.sub(r"\S*\d\S*", "#", column)) != "#"]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        nbformat.write(executed(Path(folder)), PATH)
