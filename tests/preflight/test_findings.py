"""From facts to findings: one for each distinct cause, with its fix."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_dtrain.launch.leftovers import LeftFolder, Leftover
from jupyter_dtrain.launch.programs import Unreached
from jupyter_dtrain.preflight.doctor import judge
from jupyter_dtrain.preflight.findings import HERE, Chosen, Connection, Scene, Speeds
from jupyter_dtrain.preflight.networks import (
    by_address,
    common_subnet,
    interface_of,
    interface_to_most,
    named_interface,
)
from jupyter_dtrain.preflight.probe import Device, Facts, GpuFacts, Holder, Interface, Nvidia, Package, Space
from jupyter_dtrain.preflight.reach import BySsh

GIB = 2**30
ETH = Interface("eth0", addresses=["10.0.0.1/24", "fe80::1/64"])
LO = Interface("lo", loopback=True, addresses=["127.0.0.1/8", "::1/128"])
FINE = Facts(
    place="p",
    python="3.11.2",
    packages={"jupyter-dtrain": "1.0", "ipyparallel": "9.2.0", "mpi4py": "4.1.0", "torch": "2.13.0+cu130"},
    package=Package("/lib", "d1"),
    cores=8,
    memory=Space(64 * GIB, 60 * GIB),
    shm=Space(32 * GIB, 32 * GIB, "/dev/shm"),
    tmp=Space(99 * GIB, 99 * GIB, "/tmp"),
    limits={"memlock": -1, "nofile": 65536, "nproc": -1},
    interfaces=[LO, ETH],
    clock=100.5,
    sent=100.0,
    received=101.0,
)


def facts(**changes):
    """Facts of a machine on which nothing is wrong, but for these ``changes``."""
    return msgspec.structs.replace(FINE, **changes)


def scene(machines, **more):
    """This machine and hosts, each a machine of its own."""
    examined = {HERE: facts(place="here"), **machines}
    examined = {
        name: msgspec.structs.replace(one, place=name, hostname=one.hostname or name)
        if isinstance(one, Facts) and one.place == "p"
        else one
        for name, one in examined.items()
    }
    chosen = {name: Chosen("eth0", "10.0.0.1") for name in examined}
    return Scene(examined, **{"python": "py", "chosen": chosen, **more})


def found(machines, **more):
    """The findings that are more than good news."""
    return [one for one in judge(scene(machines, **more)) if one.severity != "ok" and not is_usual(one)]


def is_usual(finding):
    """Whether healthy hosts without a fast fabric have this note as well."""
    return finding.what.startswith(("Machines reach each other by", "No host has InfiniBand"))


def only(machines, **more):
    """The one finding."""
    [one] = found(machines, **more)
    return one


def test_machines_on_which_nothing_is_wrong_have_no_finding():
    said = [one.what for one in judge(scene({"a": FINE, "b": FINE})) if one.severity == "ok"]

    assert found({"a": FINE, "b": FINE}) == []
    assert "Python 3.11.2 on all machines." in said
    assert "ssh reaches a, b." in said
    assert any("torch 2.13.0+cu130 on all machines" in one for one in said)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {},
            "torchft is not installed on a; elastic training needs it: `py -m pip install 'jupyter-dtrain[elastic]'`.",
        ),
        ({"python": "3.14.0"}, "torchft has no wheel for Python 3.14, so elastic training does not work on a."),
        (
            {"machine": "aarch64"},
            "torchft has no wheel for aarch64 processors, so elastic training does not work on a.",
        ),
        ({"packages": {**FINE.packages, "torchft": "0.2.0"}}, "torchft 0.2.0 on a"),
    ],
)
def test_a_package_for_some_machines_only_is_said_to_fit_or_not(change, words):
    """Nothing is wrong on a machine without it."""
    said = judge(scene({"a": facts(**change)}))

    assert [one.severity for one in said if "torchft" in one.what] == ["ok"]
    assert words in next(one.what for one in said if "torchft" in one.what)


def test_this_machine_alone_is_judged_as_a_host():
    low = facts(tmp=Space(GIB, 1000, "/tmp"))

    [one] = [one for one in judge(Scene({HERE: low})) if one.severity != "ok"]
    assert (one.severity, one.where) == ("warning", [HERE])
    assert "/tmp on this machine has 0 MiB left" in one.what


def test_hosts_that_fail_alike_share_a_finding():
    gone = Unreached("timed out", "No answer within 5 s.", "See whether it is on.")
    other = Unreached("host key changed", "The key of c changed.", "Run `ssh-keygen -R c`.")
    timed_out, changed = found({"a": gone, "b": gone, "c": other})

    assert (timed_out.severity, timed_out.where) == ("error", ["a", "b"])
    assert timed_out.what == "A host does not answer: No answer within 5 s."
    assert (changed.where, changed.fix) == (["c"], "Run `ssh-keygen -R c`.")


def test_a_host_without_the_package_is_told_so_and_nothing_else():
    """Its Python is the wrong one, so what it lacks besides says nothing."""
    bare = Unreached("no package", "The package jupyter_dtrain is missing; py does not find it.", "Install it there.")
    one = only({"a": FINE, "b": bare})

    assert (one.severity, one.where) == ("error", ["b"])
    assert one.what == "The package jupyter_dtrain is missing on b."
    assert one.fix == bare.fix


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({"python": "3.12.1"}, "error", "different Python versions: 3.11.2 on this machine, a; 3.12.1 on b."),
        ({"packages": {**FINE.packages, "jupyter-dtrain": "1.1"}}, "error", "versions of jupyter_dtrain: 1.0 on"),
        ({"package": Package("/x", "d2")}, "warning", "The sources of jupyter_dtrain on b differ"),
        ({"packages": {**FINE.packages, "torch": "2.9.0"}}, "error", "torch: 2.13.0+cu130 on a; 2.9.0 on b."),
        ({"packages": {**FINE.packages, "torch": "2.13.1"}}, "warning", "torch: 2.13.0+cu130 on a; 2.13.1 on b."),
        ({"packages": {**FINE.packages, "ipyparallel": "9.1.0"}}, "error", "different versions of ipyparallel"),
        ({"packages": {k: v for k, v in FINE.packages.items() if k != "torch"}}, "error", "torch is missing on b."),
        ({"packages": {**FINE.packages, "jax": "0.10"}}, "error", "jax is missing on a."),
        ({"clock": 104.0}, "warning", "b is 3.0 s ahead"),
        ({"clock": 97.0}, "warning", "b is 3.0 s behind"),
        ({"limits": {"nofile": 256}}, "warning", "Few files may be open at a time: 256 on b."),
        ({"limits": {"nproc": 100}}, "warning", "Few processes and threads are allowed: 100 on b."),
        ({"memory": Space(GIB, 2**27)}, "warning", "b has 128 MiB of free memory for 1 rank."),
        ({"shm": Space(2**26, 2**26)}, "warning", "/dev/shm on b has 64 MiB in all."),
        ({"shm": Space(8 * GIB, 2**20)}, "warning", "/dev/shm on b has 1 MiB left."),
        ({"shm": None, "unknown": {"shm": "No such file"}}, "warning", "b has no /dev/shm."),
        ({"unknown": {"devices": "denied"}}, "note", "Not known on b: devices (denied)."),
        ({"leftovers": [Leftover(7, 1, "w-1")]}, "warning", "Processes of dead worlds (w-1) still run on b: pid 7."),
        ({"folders": [LeftFolder("/tmp/x", "w-1")]}, "warning", "Dead worlds (w-1) have left folders on b: /tmp/x."),
        ({"nvidia": Nvidia("1", "13", [])}, "", ""),
    ],
)
def test_each_difference_is_one_finding(change, severity, words):
    found_ones = found({"a": FINE, "b": facts(**change)})

    if not severity:
        assert found_ones == []
        return
    [one] = found_ones
    assert one.severity == severity
    assert words in one.what
    assert one.where in (["b"], ["a"], [HERE, "a", "b"])
    assert one.why


def test_a_clock_within_the_round_trip_is_right():
    """An answer that took ten seconds may have been given in any of them."""
    assert found({"a": facts(clock=108.0, sent=100.0, received=110.0)}) == []
    assert facts(clock=112.5, sent=100.0, received=110.0).skew == pytest.approx(2.5)
    assert facts(clock=98.0, sent=100.0, received=110.0).skew == pytest.approx(-2.0)


def test_two_names_of_one_machine_are_seen():
    one = only({"a": facts(place="same", hostname="vm"), "b": facts(place="same", hostname="vm")})

    assert (one.severity, one.what, one.where) == ("warning", "a, b are one machine.", ["a", "b"])


def test_two_machines_of_one_name_are_seen():
    one = only({"a": facts(hostname="node"), "b": facts(hostname="node"), "c": FINE})

    assert (one.severity, one.where) == ("warning", ["a", "b"])
    assert one.what == "a, b have the same hostname, 'node'."


def test_drivers_and_numbers_of_gpus_are_compared():
    def gpus(driver, count):
        return facts(nvidia=Nvidia(driver, "13.0", [GpuFacts(index, "H100", 0, 80 * GIB) for index in range(count)]))

    drivers, numbers = found({"a": gpus("580", 2), "b": gpus("570", 1)})
    lacking, counted = found({"a": gpus("580", 2), "b": FINE})
    crowded = only({"a": gpus("580", 2)}, slots={"a": 4})

    assert drivers.what == "The hosts have different NVIDIA drivers: 580 on a; 570 on b."
    assert (numbers.severity, numbers.what) == ("note", "GPUs: 2 on a; 1 on b.")
    assert lacking.what == "There is no GPU on b; other hosts have some."
    assert counted.severity == "note"
    assert crowded.what == "4 ranks would share 2 GPUs on a."


def test_a_gpu_in_use_names_who_holds_it_and_tells_strays_apart():
    holders = [Holder(5, "ann", "python", "", 3 * GIB), Holder(6, "me", "python", "w-1", GIB)]
    gpu = GpuFacts(3, "H100", 4 * GIB, 80 * GIB, holders)
    stray, other, leftover = sorted(
        found({"a": facts(nvidia=Nvidia("1", "1", [gpu]), leftovers=[Leftover(6, 1, "w-1")])}),
        key=lambda one: "is held by" not in one.what,
    )

    assert "GPU 3 on a is held by what dead worlds left behind: python of me (pid 6, world w-1, 1.0 GiB)." == stray.what
    assert "--remove-leftovers" in stray.fix
    assert "GPU 3 on a is in use (4.0 GiB of 80.0 GiB): python of ann (pid 5, 3.0 GiB)." in (other.what, leftover.what)


def test_memory_of_a_gpu_without_a_visible_process_is_told():
    gpu = GpuFacts(0, "H100", 40 * GIB, 80 * GIB)

    assert "processes that this user cannot see" in only({"a": facts(nvidia=Nvidia("1", "1", [gpu]))}).what


def test_file_systems_are_shared_by_all_by_none_or_by_some():
    apart = found({"a": facts(shared=False), "b": facts(shared=False)})
    mixed = found({"a": facts(shared=True), "b": facts(shared=False)})

    assert found({"a": facts(shared=True), "b": facts(shared=True)}) == []
    assert [(one.severity, one.where) for one in apart] == [("note", ["a", "b"])]
    assert [(one.severity, one.where) for one in mixed] == [("warning", ["b"])]


def fabric(**more):
    return facts(devices=[Device("mlx5_0", layer="InfiniBand", rate="400 Gb/sec", **more)])


def test_a_fabric_that_all_hosts_have_comes_with_the_variables_that_pin_it():
    one = only({"a": fabric(active=True), "b": fabric(active=True)})

    assert one.severity == "note"
    assert "InfiniBand mlx5_0 (400 Gb/sec)" in one.what
    assert "MPI's own messages take TCP" in one.why
    assert one.fix.endswith("--env NCCL_IB_HCA=mlx5_0.")


def test_a_fabric_that_some_hosts_lack_or_that_is_down_is_a_warning():
    lacking = only({"a": fabric(active=True), "b": FINE})
    down = only({"a": fabric(active=False), "b": fabric(active=False)})

    assert (lacking.where, "NCCL_IB_DISABLE=1" in lacking.fix) == (["b"], True)
    assert (down.where, down.severity) == (["a", "b"], "warning")


def test_memory_that_may_not_be_locked_matters_to_a_fabric_only():
    limited = {"memlock": 2**23, "nofile": 65536, "nproc": -1}

    assert found({"a": facts(limits=limited)}) == []
    locked = [one for one in found({"a": msgspec.structs.replace(fabric(active=True), limits=limited)}) if one.where]
    assert any(one.what == "Little memory may be locked: 8 MiB on a." for one in locked)


def test_the_absence_of_a_fabric_is_said():
    [said] = [one for one in judge(scene({"a": FINE})) if one.what.startswith("No host has InfiniBand")]

    assert said.severity == "note"


def test_the_interfaces_are_told_with_the_variables_that_pin_them():
    [one] = [one for one in judge(scene({"a": FINE, "b": FINE})) if one.what.startswith("Machines reach")]

    assert "eth0 (10.0.0.1) on a" in one.what
    assert "--env GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=eth0." in one.fix


def test_machines_with_interfaces_of_different_names_get_only_the_variables_that_take_a_list():
    chosen = {HERE: Chosen("eth0", "10.0.0.1"), "a": Chosen("eth0", "10.0.0.2"), "b": Chosen("eth1", "10.0.0.3")}
    said = judge(scene({"a": FINE, "b": FINE}, chosen=chosen))
    [one] = [one for one in said if one.what.startswith("Machines reach")]

    assert one.fix.endswith("--env NCCL_SOCKET_IFNAME=eth0,eth1.")


def test_a_host_without_the_wanted_interface_is_named_with_those_that_it_has():
    chosen = {HERE: Chosen("ib0", "10.1.0.1"), "a": None}
    one = only({"a": FINE}, chosen=chosen, wanted="ib0")

    assert (one.severity, one.where) == ("error", ["a"])
    assert one.what == "There is no interface 'ib0' with an address on a."
    assert one.fix == "Name one that is there: lo, eth0 on a."


def test_machines_without_a_common_network_are_named():
    chosen = {HERE: Chosen("eth0", "10.0.0.1"), "a": Chosen("eth0", "10.0.0.2"), "b": Chosen("eth0", "fd00::1")}
    one = only({"a": FINE, "b": FINE}, chosen=chosen)

    assert one.severity == "error"
    assert one.what == "The machines have no common network: IPv4 on this machine, a; IPv6 on b."


def test_a_blocked_port_names_both_ends():
    tried = [
        Connection("a", "b", "10.0.0.2", "Connection refused"),
        Connection("c", "b", "10.0.0.2", "Connection refused"),
        Connection("b", "a", "10.0.0.1"),
    ]
    one = only({"a": FINE, "b": FINE, "c": FINE}, connections=tried)

    assert one.severity == "error"
    assert one.what == "b (10.0.0.2) cannot be reached from a, c: Connection refused."
    assert "firewalls" in one.fix


def test_connections_that_a_busy_machine_did_not_try_refuse_no_world():
    late = Connection("a", "b", "10.0.0.2", "There was no answer within 8 s.", tried=False)
    one = only({"a": FINE, "b": FINE}, connections=[late, Connection("b", "a", "10.0.0.1")])

    assert (one.severity, one.where) == ("warning", ["a"])
    assert one.what == "Connections were not tried: a: There was no answer within 8 s."


def test_a_machine_that_cannot_listen_is_one_finding():
    failure = "cannot listen: Cannot assign requested address"
    one = only({"a": FINE, "b": FINE}, connections=[Connection("b", "b", "10.0.0.9", failure)])

    assert (one.severity, one.where) == ("error", ["b"])
    assert one.what == f"b {failure} (10.0.0.9)."


def test_hosts_that_lie_behind_different_interfaces_are_a_warning():
    ways = {"a": Chosen("eth0", "10.0.0.1"), "b": Chosen("eth1", "10.1.0.1"), "c": None}
    several, unknown = found({"a": FINE, "b": FINE, "c": FINE}, ways=ways)

    assert "eth0 leads to a; eth1 leads to b" in several.what
    assert unknown.where == ["c"]


def test_the_all_reduce_over_all_hosts_is_told():
    hosts = dict.fromkeys("abc", FINE)
    told = only(hosts, speeds=Speeds(2e-5, 0.004))

    assert told.severity == "note"
    assert told.what == "All-reduce over all hosts: 20 µs for 8 bytes, 4.0 ms for 4 MiB (1.05 GB/s)."
    assert only(hosts, speeds="no slots").what == "An MPI job on the hosts failed: no slots"


def test_the_gravest_findings_come_first():
    said = judge(scene({"a": facts(python="3.12.0", tmp=Space(1, 1, "/tmp")), "b": FINE}))
    order = ["error", "warning", "note", "ok"]

    assert [one.severity for one in said] == sorted((one.severity for one in said), key=order.index)
    assert {"error", "warning", "note", "ok"} == {one.severity for one in said}


def test_an_interface_is_found_by_its_name_or_its_address():
    down = Interface("eth1", up=False, addresses=["10.9.0.1/24"])

    assert named_interface([LO, ETH, down], "eth0") == Chosen("eth0", "10.0.0.1")
    for wanted, words in (("ib0", "has no interface 'ib0'. It can use: lo, eth0."), ("eth1", "switched off")):
        with pytest.raises(ValueError, match=words) as caught:
            named_interface([LO, ETH, down], wanted)
        assert caught.value.option == "interface"
    assert by_address([LO, ETH], "::ffff:10.0.0.1") == Chosen("eth0", "10.0.0.1")
    assert by_address([LO, ETH], "127.0.1.1") == Chosen("lo", "127.0.1.1", loopback=True)
    assert by_address([LO, ETH], "10.0.0.9") is None
    ways = {"a": Chosen("lo", "127.0.0.1", True), "b": None, "c": Chosen("eth0", "10.0.0.1")}
    assert interface_to_most(ways).name == "eth0"


def test_ranks_are_timed_over_the_subnet_of_all_hosts_and_over_all_networks_where_there_is_none():
    docker = Interface("docker0", addresses=["172.17.0.1/16"])
    a = facts(interfaces=[LO, ETH, docker])
    b = facts(interfaces=[LO, Interface("eth0", addresses=["10.0.0.2/24"]), docker])
    eth = {"a": Chosen("eth0", "10.0.0.1"), "b": Chosen("eth0", "10.0.0.2")}
    inside = Chosen("docker0", "172.17.0.1")
    one = {"a": msgspec.structs.replace(a, place="same"), "b": msgspec.structs.replace(a, place="same")}

    assert common_subnet(scene({"a": a, "b": b}, chosen=eth)) == "10.0.0.0/24"
    assert common_subnet(scene(one, chosen=eth | {"b": eth["a"]})) == "10.0.0.0/24", "two names of one machine"
    assert common_subnet(scene({"a": a, "b": b}, chosen={"a": inside, "b": inside})) == "", "two machines, one address"
    assert common_subnet(scene({"a": a, "b": b}, chosen=eth | {"b": inside})) == ""
    assert common_subnet(scene({"a": a, "b": b}, chosen=eth | {"b": None})) == ""
    assert common_subnet(scene({"a": a}, chosen={"a": Chosen("eth0", "fe80::1")})) == "", "MPI uses IPv4"


def test_a_host_uses_the_interface_by_which_it_was_reached():
    two = [LO, Interface("eth9", addresses=["10.9.0.1/24"]), ETH]

    assert interface_of(facts(interfaces=two), "10.0.0.1").name == "eth0"
    assert interface_of(facts(interfaces=two), "127.0.0.1").name == "eth9", "a tunnel"
    assert interface_of(facts(interfaces=two), "", "eth0").name == "eth0"
    assert interface_of(facts(interfaces=two), "10.0.0.1", "ib0") is None
    assert interface_of(facts(interfaces=[LO]), "127.0.0.1") is None
    assert BySsh().address("a", facts(ssh=["10.0.0.7", "1", "10.0.0.1", "22"])) == "10.0.0.1"
    assert BySsh().address("a", facts(ssh=[])) == ""
