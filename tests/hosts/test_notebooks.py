"""The examples on two hosts: the one about hosts as it is, and those of frameworks with another line to start."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.hosts.launching import left
from tests.hosts.network import Network
from tests.notebooks import EXAMPLES, code_cells, execute, one, said_in
from tests.steward.until import until

HOSTS = EXAMPLES / "17_several_hosts.ipynb"


def executed(name: str, folder: Path, line: str, other: str) -> str:
    """Run a notebook in which a stranger has changed one line; everything that its cells print."""
    sources = [cell.source for cell in code_cells(nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4))]
    assert sum(line in source for source in sources) == 1, f"{name} has not one {line!r}"
    cells = execute(
        EXAMPLES / f"{name}.ipynb",
        folder,
        change=lambda source: source.replace(line, other),
        kept=name == HOSTS.stem,
    )
    return said_in(cells)


@pytest.mark.slow
@one(HOSTS)
def test_the_notebook_about_hosts_trains_on_both(network: Network, home: Path, tmp_path: Path, path: Path) -> None:
    """It examines them, trains, and leaves nothing of the world there."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    line = 'hosts = "--hosts gpu1:2,gpu2:2"'
    said = executed(path.stem, tmp_path, line, f"{line[:-1]} --ssh-args='-F {network.ssh_config}'\"")

    assert "local rank 1 of 2 on gpu1" in said
    assert "local rank 0 of 2 on gpu2" in said
    assert float(re.findall(r"test accuracy ([0-9.]+)", said)[-1]) > 0.9
    # The doctor's MPI job leaves an empty folder of Open MPI's at times.
    until(lambda: not [line for line in left(network) if ": prted." not in line])


@pytest.mark.slow
def test_the_first_notebook_learns_the_same_on_two_hosts(network: Network, home: Path, tmp_path: Path) -> None:
    """Two ranks on each host print the losses and the accuracy of four ranks here, to the last digit."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    line = "%distributed start -n 2"
    hosts = f"%distributed start --hosts gpu1:2,gpu2:2 --ssh-args='-F {network.ssh_config}'"
    there = executed("01_first_world", tmp_path, line, hosts)
    here = executed("01_first_world", tmp_path, line, "%distributed start -n 4")
    losses, local = ({*re.findall(r"rank (\d) epoch (\d+) loss ([0-9.]+)", said)} for said in (there, here))

    assert len(losses) == 4 * 10
    assert losses == local
    assert re.findall(r"test accuracy [0-9.]+", there)[-1] == re.findall(r"test accuracy [0-9.]+", here)[-1]
    assert "parameters identical on all 4 ranks: True" in there
    until(lambda: not [line for line in left(network) if "process" in line])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "package"), [("11_tensorflow", "tensorflow"), ("14_jax", "flax")])
def test_a_framework_trains_on_two_hosts(network: Network, home: Path, tmp_path: Path, name: str, package: str) -> None:
    """The cells are those that run on one machine."""
    pytest.importorskip(package)
    hosts = f"--hosts gpu1:1,gpu2:1 --ssh-args='-F {network.ssh_config}'"
    said = executed(name, tmp_path, "%distributed start -n 2", f"%distributed start {hosts}")

    print(said[-3000:])
    assert re.search(r"loss", said)
    until(lambda: not [line for line in left(network) if "process" in line])
