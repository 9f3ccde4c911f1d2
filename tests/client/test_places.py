"""The heading above a cell: found in a file by the cell's id or its text, read again once the file has changed."""

from __future__ import annotations

import json

import pytest

from jupyter_dtrain.client.places import LARGEST, WIDTH, heading_above, headings, notebook_file


def write(path, *cells):
    """A notebook of ``(kind, id, text)``."""
    path.write_text(
        json.dumps({"cells": [{"cell_type": k, "id": i, "source": [t], "outputs": 7} for k, i, t in cells]})
    )


def test_a_cell_has_the_nearest_heading_above_it_by_its_id_or_by_a_text_that_only_it_has(tmp_path):
    """A heading of code is none, and neither is one below."""
    file = tmp_path / "a.ipynb"
    write(
        file,
        ("code", "one", "x = 1"),
        ("markdown", "m", "# Shapes\nwords\n## The `CNN`, **first** [try](http://x)  ##\n```\n# no\n```\n"),
        ("raw", "r", "# raw"),
        ("code", "two", "# comment\ny = 1"),
        ("markdown", "n", "### Later"),
        ("code", "three", "y = 1"),
        ("code", "", "z = 1\n"),
        ("code", "four", "y = 1"),
    )

    assert heading_above(str(file), "one", "x = 1") == ""
    assert heading_above(str(file), "two", "") == "The CNN, first try"
    assert heading_above(str(file), "four", "") == "Later"
    assert heading_above(str(file), "unknown", "z = 1") == "Later"
    assert heading_above(str(file), "", "y = 1") == ""

    write(file, ("markdown", "m", "# Other, and longer"), ("code", "two", "y = 1"))
    assert heading_above(str(file), "two", "") == "Other, and longer"


def test_a_heading_is_one_bounded_line():
    """Whatever stands in the file; tags and what cannot be printed go."""
    (found,) = headings("# " + "x\u202e\x1b\t" * 10_000)
    assert len(found) == WIDTH
    assert found.isprintable()
    assert list(headings("#\n#no\n    # code\n# <b>Bold</b>")) == ["Bold"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"cells": 3}', b"[]", b'{"cells": [{"source": 3}]}', b"\xff" * 100])
def test_a_file_that_is_no_notebook_has_no_heading(tmp_path, content):
    """Nothing raises; nor without a file, for a folder, or for a file that is too large."""
    file = tmp_path / "b.ipynb"
    file.write_bytes(content)
    large = tmp_path / "large.ipynb"
    write(large, ("markdown", "", "# A"), ("code", "a", ""))
    with large.open("ab") as out:
        out.truncate(LARGEST + 1)

    assert heading_above(str(file), "a", "") == ""
    assert heading_above(str(tmp_path / "none.ipynb"), "a", "") == ""
    assert heading_above(str(tmp_path), "a", "") == ""
    assert heading_above(str(large), "a", "") == ""


def test_front_ends_tell_the_file_each_in_its_way(tmp_path, monkeypatch):
    """Older servers tell it below their own folder; a console has none."""

    class Shell:
        user_ns: dict[str, object]

    file = tmp_path / "work" / "c.ipynb"
    file.parent.mkdir()
    file.touch()
    shell = Shell()
    shell.user_ns = {"_dh": [str(file.parent)]}

    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert notebook_file(shell) == ""
    for told in (str(file), "work/c.ipynb"):
        monkeypatch.setenv("JPY_SESSION_NAME", told)
        assert notebook_file(shell) == str(file)
    monkeypatch.setenv("JPY_SESSION_NAME", "console-1-abc")
    assert notebook_file(shell) == ""
    shell.user_ns["__vsc_ipynb_file__"] = str(file)
    assert notebook_file(shell) == str(file)
