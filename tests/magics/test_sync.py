"""``%distributed upload`` in a notebook, to hosts behind a real ssh server that share this machine's files."""

from __future__ import annotations

import shutil

import pytest

from tests.sshd import SshServer, free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The host a, like this machine, and ``shut``, which has no server."""
    if shutil.which("rsync") is None:
        pytest.skip("needs rsync")
    with SshServer(tmp_path_factory.mktemp("sshd"), {"a": {}}) as one:
        one.alias("shut", Port=free_port())
        yield one


@pytest.fixture
def hosts(server):
    """The options that name one host."""
    return f"--hosts a --ssh-args '{server.args}'"


def test_a_table_has_what_was_copied(notebook, hosts, tmp_path):
    """A second copy finds nothing new; the place itself, which the host shares, is left alone."""
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "-x.py").write_text("VALUE = 1")
    line = f"%distributed upload {hosts} '{folder}'"
    first, again = (notebook.ok(f"{line} --to '{tmp_path}/the re' --exclude '*.ckpt'") for _ in range(2))
    same = notebook.ok(line)

    assert (tmp_path / "the re" / "a b" / "-x.py").read_text() == "VALUE = 1"
    assert first.display_texts[-1].splitlines()[-1].split() == ["a", "1", "9", "bytes", "copied"]
    assert again.display_texts[-1].endswith("up to date")
    assert same.display_texts[-1].endswith("shares this machine's files: left alone")
    assert "<table>" in first.displays[-1]["data"]["text/html"]


def test_a_host_that_fails_is_in_the_table_and_fails_the_cell(notebook, server, tmp_path):
    (tmp_path / "x.py").write_text("1")
    line = f"%distributed upload --hosts a,shut --ssh-args '{server.args}' {tmp_path}/x.py --to {tmp_path}/there"
    cell = notebook.run(line)

    assert cell.ename == "UploadFailed"
    assert "shut: No ssh server listens where ssh looks for shut. Start sshd there" in cell.said
    assert "copied" in cell.display_texts[-1]
    assert (tmp_path / "there" / "x.py").exists()


def test_a_notebook_without_a_world_names_the_hosts(notebook, tmp_path):
    cell = notebook.run(f"%distributed upload {tmp_path}")

    assert cell.ename == "NoWorld"
    assert "%distributed upload --hosts gpu1,gpu2 PATH" in cell.said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/no/such/file", "This machine has no file or folder /no/such/file."),
        ("~", "is or contains your home folder"),
        ("/tmp --timeout 0", "not above 0 seconds"),
        ("--ssh-args=-N /tmp", "ssh's option -N runs no program"),
        ("", "the following arguments are required: PATH"),
        ("/tmp --delete", "unrecognized arguments: --delete"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(notebook, line, words):
    cell = notebook.run(f"%distributed upload --hosts a {line}")

    assert words in cell.said
    assert "Traceback" not in cell.said


def test_options_of_ssh_go_with_hosts(notebook):
    assert "a world has its own" in notebook.run("%distributed upload --ssh-args=-4 /tmp").said


def test_paths_and_options_are_completed(notebook, tmp_path):
    (tmp_path / "model.py").touch()
    (tmp_path / "data").mkdir()

    assert sorted(notebook.complete(f"%distributed upload {tmp_path}/")) == [
        f"{tmp_path}/data/",
        f"{tmp_path}/model.py",
    ]
    assert notebook.complete("%distributed upload x --ex") == ["--exclude"]


@pytest.mark.slow
def test_a_world_on_this_machine_needs_no_copy(ranks, tmp_path):
    cell = ranks.ok(f"%distributed upload {tmp_path}")

    assert cell.display_texts == [
        "The ranks of this world run on this machine and read the same files: nothing needs copying."
    ]
