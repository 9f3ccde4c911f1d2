"""The variables of Open MPI with which ranks on this machine start."""

from __future__ import annotations

import pytest

from jupyter_dtrain import Settings
from jupyter_dtrain.launch import mpi, options, starting


def transports(env: dict[str, str] | None = None, mpiexec: str | None = None, name: str = "btl") -> str | None:
    """The variable that chooses Open MPI's transports, or another one of its, as ranks of a world get it."""
    asked = options.check({"n": 2, "env": env or {}, "mpiexec": mpiexec})
    request = starting._make_request(asked, asked.place(), Settings(), None)
    starting._remove_folders(request)
    return mpi.ranks_environment(request).get(f"OMPI_MCA_{name}")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home and an environment without a choice of transports."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    return tmp_path


def test_mpi_leaves_out_the_transport_that_sleeps(home):
    """Unless the person chooses transports by a variable."""
    assert transports() == "^ofi"
    assert transports({"OMPI_MCA_btl": "self,sm"}) == "self,sm"


@pytest.mark.parametrize("place", [".openmpi/mca-params.conf", "mpi/etc/openmpi-mca-params.conf"])
def test_transports_chosen_in_a_settings_file_stay(home, place):
    """The person's own file, and the one of the installation."""
    mpiexec, settings = home / "mpi" / "bin" / "mpiexec", home / place
    for file, text in ((mpiexec, "#!/bin/sh\n"), (settings, "# btl = tcp\nbtl_tcp_if_include = lo\n")):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    mpiexec.chmod(0o755)
    assert transports(mpiexec=str(mpiexec)) == "^ofi"

    with open(settings, "a") as file:
        file.write("btl = self,sm\n")
    assert transports(mpiexec=str(mpiexec)) is None


def test_ranks_of_this_machine_meet_on_the_loopback_interface(home, monkeypatch):
    """Unless the person chooses interfaces, by a variable or in a settings file; Open MPI refuses two choices."""
    for name in ("btl_tcp_if_include", "btl_tcp_if_exclude"):
        monkeypatch.delenv(f"OMPI_MCA_{name}", raising=False)
    assert transports(name="btl_tcp_if_include") == "127.0.0.0/8"
    assert transports({"OMPI_MCA_btl_tcp_if_include": "eth0"}, name="btl_tcp_if_include") == "eth0"
    assert transports({"OMPI_MCA_btl_tcp_if_exclude": "eth0"}, name="btl_tcp_if_include") is None

    settings = home / ".openmpi" / "mca-params.conf"
    settings.parent.mkdir()
    settings.write_text("btl_tcp_if_exclude = eth1\n")
    assert transports(name="btl_tcp_if_include") is None
