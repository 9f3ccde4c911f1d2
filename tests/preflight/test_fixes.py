"""The ways to the hosts differ in their fixes alone."""

from __future__ import annotations

import msgspec

from jupyter_dtrain.launch.leftovers import Leftover
from jupyter_dtrain.launch.programs import Unreached
from jupyter_dtrain.preflight.doctor import judge
from jupyter_dtrain.preflight.findings import HERE, Chosen, Connection, Finding, Scene
from jupyter_dtrain.preflight.probe import Device, Facts, GpuFacts, Holder, Interface, Nvidia, Package
from jupyter_dtrain.preflight.reach import SRUN, SSH

HOST = Facts(
    hostname="a",
    place="a",
    python="3.10.1",
    packages={"jupyter-dtrain": "1.0", "ipyparallel": "9.2.0", "mpi4py": "4.1.0"},
    package=Package("/lib", "d1"),
    limits={"memlock": 64, "nofile": 64, "nproc": 64},
    interfaces=[Interface("eth0", addresses=["10.0.0.2/24"])],
    devices=[Device("mlx5_0", active=True)],
    shared=False,
    nvidia=Nvidia("1", gpus=[GpuFacts(0, used=100, total=100, held_by=[Holder(9, world="w", used=100)])]),
    leftovers=[Leftover(9, 1, "w")],
)
BARE = Unreached("no package", "The package jupyter_dtrain is missing; python does not find it.", "Install it there.")
OTHER = msgspec.structs.replace(HOST, hostname="b", place="b")
NEAR = msgspec.structs.replace(HOST, hostname="here", place="here", python="3.11.2", leftovers=[])
SCENE = Scene(
    {
        HERE: NEAR,
        "a": HOST,
        "b": OTHER,
        "c": Unreached("failed", "It is gone.", "See `sinfo -R`."),
        "d": BARE,
    },
    chosen={HERE: Chosen("eth0", "10.0.0.1"), "a": Chosen("eth0", "fd00::2"), "b": None},
    ways={"a": Chosen("eth0", "10.0.0.1"), "b": None},
    connections=[
        Connection("a", "b", "10.0.0.3", "Connection refused"),
        Connection("b", "b", "10.0.0.3", "cannot listen: no address"),
        Connection("a", HERE, "10.0.0.1", "Connection refused"),
    ],
    speeds="No daemon started.",
)
"""Machines on which most is wrong."""
OF_SSH = ("ssh", "--python", "--interface", "limits.conf", "--host ")
"""The words that lead nowhere in a job of Slurm."""


def told(fixes: object) -> tuple[list[Finding], str]:
    """The findings, and all of their words."""
    findings = judge(msgspec.structs.replace(SCENE, fixes=fixes))
    return findings, "\n".join(f"{one.what} {one.why} {one.fix}" for one in findings)


def test_fixes_for_nodes_of_slurm_name_nothing_of_ssh() -> None:
    """Both ways have the same findings otherwise."""
    by_ssh, words = told(SSH)
    by_srun, other = told(SRUN)

    assert [one for one in OF_SSH if one not in words] == []
    assert [one for one in OF_SSH if one in other] == []
    assert [(one.severity, one.where) for one in by_ssh] == [(one.severity, one.where) for one in by_srun]
    assert "LimitMEMLOCK=infinity" in other
    assert "LimitNOFILE=65536" in other
    assert "`salloc --nodelist=a,b`" in other
