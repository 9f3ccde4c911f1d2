"""Profiles of start options: the two files, what is refused, and what a save leaves alone."""

from __future__ import annotations

import pytest

from jupyter_dtrain import BadRequest, NoWorld, save_profile
from jupyter_dtrain.launch.options import check
from jupyter_dtrain.launch.profiles import FILE, find_profile, profile_names
from jupyter_dtrain.wire.requests import CellDefaults

TEXT = """
# Of the lab's cluster.
[a100]
slurm = true
nodes = 2
gpus-per-node = "a100:8"
time = 90
env = { NCCL_DEBUG = "INFO" }

[a100.cells]
timeout = 3600
check_every = 50

[two]
n = 2
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The file beside the notebook, and that in Jupyter's configuration folder, which has the profiles."""
    beside, config = tmp_path / "notebooks", tmp_path / "config"
    for folder in (beside, config):
        folder.mkdir()
    monkeypatch.chdir(beside)
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(config))
    (config / FILE).write_text(TEXT)
    return beside / FILE, config / FILE


@pytest.mark.usefixtures("files")
def test_the_options_of_a_profile_apply_where_no_others_are_given():
    asked = check({"profile": "a100", "nodes": 4, "torch_backend": "gloo", "env": None})
    slurm = asked.launcher_values

    assert (slurm["nodes"], slurm["gpus_per_node"], slurm["time"]) == (4, "a100:8", "90")
    assert asked.world.env == {"NCCL_DEBUG": "INFO"}
    assert asked.world.profile == "a100"
    assert asked.cells == CellDefaults(timeout=3600, check_every=50)
    assert asked.frameworks["torch"].torch_backend == "gloo"


def test_the_file_beside_the_notebook_wins(files):
    beside, config = files
    beside.write_text("[two]\nn = 3\n")

    assert check({"profile": "two"}).world.n == 3
    assert find_profile("two").file == beside
    assert find_profile("a100").file == config
    assert profile_names() == ["two", "a100"]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("[two]\n", "tow", r"There is no profile 'tow': .*dtrain\.toml has two; .*dtrain\.toml has a100, two\."),
        ("[x]\ngpu_per_node = 8\n", "x", r"In the profile 'x' of .*: There is no option 'gpu_per_node' \(did you mean"),
        ("[x]\nn = 0\n", "x", r"In the profile 'x' of .*: n must be a whole number, at least 1"),
        (
            "[x]\nslurm = true\nhosts = 'a:2'\n",
            "x",
            "In the profile 'x' of .*: slurm and hosts each say where the ranks",
        ),
        ("[x.cells]\ntimout = 3\n", "x", r"\[x\.cells\] has the key 'timout', .* \(did you mean timeout\?\)"),
        ("[x.cells]\ntimeout = 'long'\n", "x", r"\[x\.cells\]: timeout cannot be 'long'\."),
        ("x = 3\n", "x", r"x must be a table of start options, as in \[x\]"),
        ("[x]\ncells = 3\n", "x", r"cells of the profile 'x' must be a table"),
        ("[x]\nprofile = 'two'\n", "x", "a profile cannot name another one"),
        ("[x\n", "x", r"dtrain\.toml cannot be read: .*line 1"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(files, text, name, words):
    files[0].write_text(text)
    with pytest.raises(BadRequest, match=words) as caught:
        check({"profile": name})
    assert caught.value.option == "profile"


def test_the_dialog_takes_the_profile_beside_its_notebook_and_the_place_that_it_names(files, tmp_path):
    """The server has another folder. The dialog sends this machine where a person has left it."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / FILE).write_text("[a100]\nslurm = true\nnodes = 3\n")
    asked = check({"profile": "a100"}, "local", folder=folder)

    assert (asked.launcher.name, asked.launcher_options.nodes) == ("slurm", 3)


def test_a_line_that_chooses_another_launcher_than_its_profile_is_refused(files):
    assert files[1].exists()
    with pytest.raises(BadRequest, match="slurm and hosts each say where the ranks run: give one of them"):
        check({"profile": "a100", "hosts": "a:2"})


def test_without_any_file_the_error_says_how_one_is_made(files):
    files[1].unlink()
    with pytest.raises(BadRequest, match=r"no file dtrain\.toml beside the notebook or in .*--save-profile a100 makes"):
        check({"profile": "a100"})


def test_a_save_keeps_comments_other_profiles_and_the_defaults_of_cells(files):
    """It can be read by its owner alone: values of env may be secrets."""
    _, config = files
    file = save_profile("a100", slurm=True, nodes=3, env={"TOKEN": "x"}, n=None)
    text = config.read_text()

    assert file == config
    assert "# Of the lab's cluster." in text
    assert config.stat().st_mode & 0o077 == 0
    assert find_profile("a100").options == {"slurm": True, "nodes": 3, "env": {"TOKEN": "x"}}
    assert find_profile("a100").cells.timeout == 3600
    assert check({"profile": "two"}).world.n == 2


def test_a_save_makes_the_file_and_takes_on_a_profile(files):
    files[1].unlink()
    files[0].write_text("[small]\nn = 2\ntorch_backend = 'gloo'\n")
    save_profile("other", profile="small", n=3)

    assert find_profile("other").options == {"n": 3, "torch_backend": "gloo"}


@pytest.mark.usefixtures("files")
def test_a_save_is_refused_before_anything_is_written():
    with pytest.raises(BadRequest, match="'a b' cannot name a profile"):
        save_profile("a b", n=2)
    with pytest.raises(BadRequest, match="n must be a whole number"):
        save_profile("a", n=0)
    with pytest.raises(NoWorld):
        save_profile("a")
    assert profile_names() == ["a100", "two"]
