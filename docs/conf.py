"""Build the site by `make docs`: Sphinx writes docs/_build/html, without a network."""

import importlib.metadata
import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import toctree
from sphinx.application import Sphinx

project = "Lockstep"
author = "The Lockstep authors"
copyright = "2026, The Lockstep authors"
release = importlib.metadata.version("lockstep-vision")

extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["_build", "images/*.py"]
nitpicky = True

myst_heading_anchors = 3  # links to headings work as on GitHub
nb_execution_mode = "off"  # tests/system/test_site.py executes the notebook

html_theme = "furo"
html_title = "Lockstep"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["tables.css"]

INDEX = re.compile(r"^<!-- index: (.+) -->$", re.MULTILINE)


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_index)
    app.connect("build-finished", write_llms)


def add_index(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn `<!-- index: a, b -->` into index entries, the first results of a search for a or b."""
    source[0] = INDEX.sub(
        lambda found: f"```{{index}} ! {found[1].replace(', ', ', ! ')}\n```", source[0]
    )


def write_llms(app: Sphinx, error: Exception | None) -> None:
    """Write each page as Markdown, an index llms.txt (llmstxt.org), and llms-full.txt with all."""
    if error is not None or app.builder.format != "html":
        return
    root, texts = app.env.get_doctree(app.config.root_doc), []
    index = [f"# {project}", f"> {_first_paragraph(root)}"]
    for tree in root.findall(toctree):
        lines = []
        for _, name in tree["entries"]:
            texts.append(_markdown(Path(app.env.doc2path(name))))
            (app.outdir / f"{name}.md").write_text(texts[-1])
            about = _first_paragraph(app.env.get_doctree(name))
            lines.append(f"- [{app.env.titles[name].astext()}]({name}.md): {about}")
        index += [f"## {tree['caption']}", "\n".join(lines)]
    (app.outdir / "llms.txt").write_text("\n\n".join(index) + "\n")
    (app.outdir / "llms-full.txt").write_text("\n\n".join(texts) + "\n")


def _first_paragraph(page: nodes.document) -> str:
    return next((" ".join(found.astext().split()) for found in page.findall(nodes.paragraph)), "")


def _markdown(path: Path) -> str:
    """Return a page as Markdown; cells of a notebook become blocks of Python."""
    if path.suffix == ".md":
        return path.read_text()
    cells = [
        (cell["cell_type"], "".join(cell["source"]))
        for cell in json.loads(path.read_text())["cells"]
    ]
    return "\n\n".join(
        text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in cells
    )
