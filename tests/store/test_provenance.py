"""The commit of a run: what git says of a real repository, without what git ignores, and without secrets."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest

from jupyter_dtrain.core.events import RunContext, Started
from jupyter_dtrain.store import provenance
from jupyter_dtrain.store.provenance import LARGEST, NAMES, Commits, read_commit
from jupyter_dtrain.store.source import SpoolFolder
from jupyter_dtrain.store.writer import SKIPPED, StoreWriter
from tests.store.conftest import drain, points

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

TOKEN = "hf_" + "a1B2c3D4" * 4


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit, and a function that calls git in it."""
    root = tmp_path / "code"
    root.mkdir()

    def git(*words):
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=root, env=env, check=True, capture_output=True)

    git("init", "-q", "-b", "topic")
    (root / "train.py").write_text("lr = 1\n")
    (root / ".env").write_text("PASSWORD=first-one\n")
    (root / ".gitignore").write_text("data/\nforced.txt\n")
    (root / "forced.txt").write_text("forced one\n")
    git("add", "-f", ".")
    git("commit", "-qm", "Train it\n\nMore words.")
    git("remote", "add", "origin", "https://me:ghp_abcdefghijklmnopqrst1234@example.org/code.git")
    return root, git


def test_a_clean_folder_has_a_commit_and_no_difference(repository):
    """Also asked for from a folder below; the address of the remote says nothing about who may go there."""
    root, _ = repository
    (root / "sub").mkdir()

    found = read_commit(root / "sub")

    assert len(found.hash) == 40
    assert (found.branch, found.message, found.dirty, found.diff) == ("topic", "Train it", False, "")
    assert found.remote == "https://example.org/code.git"
    assert found.folder == str(root)


def test_the_difference_has_what_git_knows_without_secrets_and_nothing_that_it_ignores(repository, monkeypatch):
    """Files that git does not know are named alone; a file of secrets is not shown, though git knows it."""
    root, _ = repository
    monkeypatch.setenv("MY_API_KEY", "quite-a-secret-of-mine")
    (root / "train.py").write_text(
        f"lr = 2\nlogin('{TOKEN}')\npassword = 'hunter2hunter2'\nx = 'quite-a-secret-of-mine'\n"
    )
    (root / ".env").write_text("PASSWORD=second-one\n")
    (root / "forced.txt").write_text("forced two\n")
    (root / "data").mkdir()
    (root / "data" / "x.csv").write_text("ignored content")
    (root / "new.py").write_text("unknown content")

    found = read_commit(root)
    whole = repr(found)

    assert found.dirty
    assert "-lr = 1\n+lr = 2\n" in found.diff
    assert found.untracked == ["new.py"]
    assert any(".env, forced.txt" in note for note in found.notes)
    assert "forced t" not in whole
    for secret in (TOKEN, "hunter2", "quite-a-secret", "first-one", "second-one", "ignored content", "unknown content"):
        assert secret not in whole


def test_a_long_difference_is_cut_and_code_comes_before_notebooks(repository):
    """Pictures in notebooks are single lines of megabytes."""
    root, git = repository
    (root / "a.ipynb").write_text("{}\n")
    git("add", ".")
    git("commit", "-qm", "x")
    (root / "a.ipynb").write_text('{"png": "' + "QUJD" * 50_000 + '"}\n')
    (root / "train.py").write_text("lr = 3\n")
    found = read_commit(root)
    assert found.diff.index("+lr = 3") < found.diff.index("a.ipynb")
    assert len(found.diff) < 10_000
    assert "more characters" in found.diff

    (root / "train.py").write_text("".join(f"line {number}\n" for number in range(200_000)))
    for number in range(NAMES + 5):
        (root / f"new-{number}").touch()
    found = read_commit(root)
    assert LARGEST // 2 < len(found.diff.encode()) <= LARGEST
    assert any("256 kB" in note for note in found.notes)
    assert len(found.untracked) == NAMES
    assert any(note.startswith("5 more files") for note in found.notes)


def test_where_there_is_no_commit_there_is_none(tmp_path, repository, monkeypatch):
    """No repository, one without a commit, no folder, no git."""
    root, _ = repository
    empty = tmp_path / "empty"
    empty.mkdir()
    assert read_commit(empty) is read_commit(tmp_path / "none") is read_commit(root / "train.py") is None
    subprocess.run(["git", "init", "-q", str(empty)], check=True, capture_output=True)
    assert read_commit(empty) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit(root) is None


def test_nothing_of_the_repository_runs_and_a_git_that_hangs_is_given_up(repository, tmp_path, monkeypatch):
    """Hooks, pagers and external programs for differences are the user's own affair; what is late is left out."""
    root, git = repository
    made = tmp_path / "ran"
    for name in ("core.pager", "core.fsmonitor", "diff.external", "diff.odd.command", "diff.odd.textconv"):
        git("config", name, f"touch {made}; true")
    (root / ".gitattributes").write_text("*.py diff=odd\n")
    (root / "train.py").write_text("lr = 4\n")
    assert "+lr = 4" in read_commit(root).diff
    assert not made.exists()

    git("config", "filter.slow.clean", "sleep 60")
    (root / ".gitattributes").write_text("*.py filter=slow\n")
    monkeypatch.setattr(provenance, "DEADLINE", 0.5)
    began = time.monotonic()
    found = read_commit(root)
    assert time.monotonic() - began < 30
    assert len(found.hash) == 40
    assert any("has not" in note for note in found.notes)


def test_commits_are_found_on_a_thread(repository):
    """Whoever asks does not wait; what fails leaves nothing behind."""
    root, _ = repository
    commits = Commits()
    commits.ask(1, "/nowhere")
    commits.ask(2, str(root))

    found = commits.found(30.0)

    assert [(run, commit.branch) for run, commit in found] == [(2, "topic")]
    assert commits.found() == []


def test_a_run_that_trains_has_the_commit_of_its_notebook_and_one_that_does_not_has_none(
    store, db, fake, repository, monkeypatch
):
    """Without a notebook it is that of the world's folder; a run that only prepares ranks has none."""
    root, _ = repository
    monkeypatch.setattr("jupyter_dtrain.store.writer.COMMIT_PATIENCE", 30.0)
    writer = StoreWriter(fake.owner, SpoolFolder(fake.folder, SKIPPED), folder="/nowhere")
    for number, context in enumerate((RunContext(str(root / "a.ipynb")), RunContext(), RunContext(aside=True)), 1):
        fake.say(number, 0, Started(1, "h", "s", source="x", ranks=[0], context=context), points("loss", [1.0]))
    fake.say(4, 0, Started(1, "h", "s", source="x", ranks=[0], context=RunContext(str(root / "a.ipynb"))))
    drain(writer, db)
    writer.close(db, "it was stopped")
    commits = {number: store.run(f"{fake.owner.name}/{number}").commit for number in range(1, 5)}

    assert commits[1].branch == "topic"
    assert [commits[number] for number in (2, 3, 4)] == [None] * 3
