"""Sphinx's settings: ``make docs`` builds ``build/docs`` from the Markdown in this folder, and no warning passes."""

from __future__ import annotations

import jupyter_dtrain

project = "jupyter-dtrain"
author = "jupyter-dtrain developers"
project_copyright = "jupyter-dtrain developers"
version = release = jupyter_dtrain.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["images"]
myst_enable_extensions = ["colon_fence"]
# Headings up to this depth can be linked to, as on the sites that show Markdown.
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# Types come from annotations, words from docstrings; both stay as they are in the code.
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = "jupyter-dtrain"
html_show_sourcelink = False
# The prompts of a terminal stay out of what is copied.
copybutton_prompt_text = "$ "
