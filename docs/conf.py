"""Sphinx's settings: ``make docs`` builds ``build/docs`` from the Markdown in this folder, and no warning passes."""

from __future__ import annotations

from docutils.nodes import Element, field_list
from sphinx.application import Sphinx

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


def setup(app: Sphinx) -> None:
    """Leave out what the constructors of classes take: ``Session.start`` and others make them, from inner parts."""
    app.connect("autodoc-process-signature", _without_signature)
    app.connect("object-description-transform", _without_parameters, priority=900)  # after Sphinx adds them


def _without_signature(_app: Sphinx, what: str, *_rest: object) -> tuple[str, str] | None:
    return ("", "") if what in ("class", "exception") else None


def _without_parameters(_app: Sphinx, _domain: str, kind: str, content: Element) -> None:
    if kind in ("class", "exception"):
        content[:] = [node for node in content if not isinstance(node, field_list)]
