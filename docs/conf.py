"""Sphinx's settings: ``make docs`` builds ``build/docs`` from the Markdown in this folder, and no warning passes.

The notebooks of ``examples/`` are pages, shown with the outputs that they are kept with; each build copies them here.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from docutils.nodes import Element, field_list
from sphinx.application import Sphinx

import jupyter_dtrain

EXAMPLES = Path(__file__).parents[1] / "examples"

project = "jupyter-dtrain"
author = "jupyter-dtrain developers"
project_copyright = "jupyter-dtrain developers"
version = release = jupyter_dtrain.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["images", "**/.ipynb_checkpoints"]
nb_execution_mode = "off"
nb_render_error_lexer = "myst-ansi"
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
html_static_path = ["_static"]
html_css_files = ["outputs.css"]
html_show_sourcelink = False
# The prompts of a terminal stay out of what is copied.
copybutton_prompt_text = "$ "


def setup(app: Sphinx) -> None:
    """Take the notebooks, lead links to them to their pages, and leave out what the constructors of classes take.

    ``Session.start`` and others make those objects, from inner parts.
    """
    _copy_examples(Path(__file__).with_name("examples"))
    app.connect("source-read", _with_links_to_the_notebooks)
    app.connect("autodoc-process-signature", _without_signature)
    app.connect("object-description-transform", _without_parameters, priority=900)  # after Sphinx adds them


def _copy_examples(here: Path) -> None:
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir()
    for file in [*EXAMPLES.glob("*.ipynb"), EXAMPLES / "README.md"]:
        shutil.copy2(file, here)


def _with_links_to_the_notebooks(_app: Sphinx, _page: str, source: list[str]) -> None:
    """On GitHub a page links to the notebooks by their own folder, which is one above that of the site."""
    source[0] = re.sub(r"\]\(\.\./((?:\.\./)*examples/)", r"](\1", source[0])


def _without_signature(_app: Sphinx, what: str, *_rest: object) -> tuple[str, str] | None:
    return ("", "") if what in ("class", "exception") else None


def _without_parameters(_app: Sphinx, _domain: str, kind: str, content: Element) -> None:
    if kind in ("class", "exception"):
        content[:] = [node for node in content if not isinstance(node, field_list)]
