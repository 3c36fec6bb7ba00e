"""The site: `make docs` builds docs/_build/html by Sphinx, without a network. The pages stay plain Markdown."""

import importlib.metadata

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
