"""Hosts as people write them, and the ranks that they get."""

from __future__ import annotations

import os

import pytest

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.launch.hostlist import named_hosts, parse_hosts, place, read_hostfile
from jupyter_dtrain.launch.options import check


@pytest.fixture
def hostfile(tmp_path):
    """Writes a hostfile: ``hostfile(text) -> path``."""

    def write(text):
        path = tmp_path / "hosts"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1:8,gpu2:8", {"gpu1": 8, "gpu2": 8}),
        (" gpu1 , gpu2:2 ", {"gpu1": 1, "gpu2": 2}),
        ("me@gpu1.lan:4", {"me@gpu1.lan": 4}),
        ("[fd00::1]:2,me@[fe80::1%eth0]", {"[fd00::1]": 2, "me@[fe80::1%eth0]": 1}),
        ("10.0.0.1:3", {"10.0.0.1": 3}),
    ],
)
def test_hosts_are_names_with_numbers_of_ranks(text, hosts):
    assert parse_hosts(text) == hosts
    assert parse_hosts(",".join(f"{name}:{slots}" for name, slots in hosts.items())) == hosts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "The list of hosts is empty. Write hosts as NAME:RANKS"),
        ("gpu1,,gpu2", "has an empty item in 'gpu1,,gpu2'"),
        ("gpu1:0", "'gpu1:0' must give a host from 1 to 1024 ranks; leave out a host that gets none."),
        ("gpu1:99999999999999", "from 1 to 1024 ranks"),
        ("gpu1:eight", "'gpu1:eight' has 'eight' where a number of ranks should be"),
        ("gpu1:", "has '' where a number of ranks should be"),
        ("gpu1:-1", "has '-1' where a number of ranks should be"),
        ("gpu1:8,gpu1:8", "The host 'gpu1' is named twice. Name each host once"),
        ("-oProxyCommand=evil", "begins with '-', so it names no host"),
        ("me@-oProxyCommand=evil", "does not begin with the name of a host"),
        ("-l@gpu1", "begins with '-'"),
        ("@gpu1", "has no user name before its '@'"),
        ("fd00::1", "An IPv6 address stands in brackets: [fd00::1]:8"),
        ("[fd00::x]:2", "has no IPv6 address in its brackets"),
        ("[fe80::1%;id]:2", "has no IPv6 address in its brackets"),
        ("[fd00::1]8", "several colons"),
        ("gpu 1", "does not begin with the name of a host"),
        ("gpu1;reboot", "does not begin with the name of a host"),
        ("gpu$(id)", "does not begin with the name of a host"),
    ],
)
def test_a_bad_list_is_refused_with_the_fix(text, words):
    with pytest.raises(BadRequest) as caught:
        parse_hosts(text)

    assert words in str(caught.value)
    assert caught.value.option == "hosts"


@pytest.mark.parametrize("hosts", ["gpu1:8,gpu2", ["gpu1:8", "gpu2"], ("gpu1:8", "gpu2"), {"gpu1": 8, "gpu2": 1}])
def test_a_program_gives_hosts_as_text_a_list_or_a_dict(hosts):
    """For a start, and where hosts alone are asked for, as by the doctor."""
    assert check({"hosts": hosts}).place().hosts == {"gpu1": 8, "gpu2": 1}
    assert named_hosts(hosts, None) == {"gpu1": 8, "gpu2": 1}


def test_a_hostfile_may_have_either_format(hostfile):
    path = hostfile(
        "# the cluster\n\ngpu1 slots=8 max_slots=16  # fast\nme@gpu2 slots = 4\ngpu3:2 // slow\ngpu4\ngpu5\ngpu4\r\n"
        "[fd00::1] max-slots=2\n"
    )

    hosts = list(read_hostfile(path).items())
    assert hosts == [("gpu1", 8), ("me@gpu2", 4), ("gpu3", 2), ("gpu4", 2), ("gpu5", 1), ("[fd00::1]", 1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host: all its lines are empty or comments. Write a host per line"),
        ("# nothing\n\n", "names no host"),
        ("gpu1\ngpu2 slots=0\n", "line 2: 'slots=0' must give a host from 1 to 1024 ranks"),
        ("gpu1 slots\n", "line 1: 'slots' is not known here; only slots= and max_slots= are"),
        ("gpu1 cores=8\n", "line 1: 'cores=8' is not known here"),
        ("gpu1:2 slots=8\n", "gives the number of slots twice"),
        ("gpu1 slots=8 max_slots=4\n", "has max_slots below its slots"),
        ("\ngpu1 slots=8\n\ngpu1 slots=8\n", "line 4: the host 'gpu1' is on line 2 already. Name it once"),
        ("gpu1\ngpu1:3\n", "line 2: the host 'gpu1' is on line 1 already"),
        ("-oProxyCommand=evil\n", "line 1: '-oProxyCommand=evil' begins with '-'"),
        (b"gpu1\n\xff\xfe\n", "line 2: this is no text"),
        ("gpu1\n" * 250_000, "is larger than a hostfile can be"),
    ],
)
def test_a_bad_hostfile_is_refused_with_its_line(hostfile, text, words):
    path = hostfile(text)

    with pytest.raises(BadRequest) as caught:
        read_hostfile(path)

    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.option == "hostfile"


def test_a_hostfile_that_cannot_be_read_is_refused_at_once(tmp_path):
    """Also a pipe, which would let the start wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for path, words in ((tmp_path / "none", "No such file"), (tmp_path, "is no file"), (pipe, "is no file")):
        with pytest.raises(BadRequest, match=words) as caught:
            read_hostfile(path)
        assert caught.value.option == "hostfile"


def test_ranks_fill_the_hosts_in_order():
    hosts = {"a": 2, "b": 3, "c": 1}

    assert list(place(hosts, 4).items()) == [("a", 2), ("b", 2)]
    assert list(place(hosts).items()) == list(hosts.items())


@pytest.mark.parametrize(
    ("hosts", "n", "words"),
    [
        ({"a": 2, "b": 3}, 6, "The 2 hosts have 5 slots, too few for 6 ranks. Ask for at most 5"),
        ({"a": 1}, 2, "The host has 1 slot, too few for 2 ranks"),
        ({"a": 1}, 0, "at least 1 rank, not 0"),
        ({"a": 1024, "b": 1}, None, "at most 1024 ranks, not 1025"),
    ],
)
def test_a_number_of_ranks_that_does_not_fit_is_refused(hosts, n, words):
    with pytest.raises(BadRequest, match=words) as caught:
        place(hosts, n)

    assert caught.value.option == "n"


def test_the_hosts_of_a_batch_job_come_from_its_schedulers_variable(hostfile, monkeypatch):
    """PBS has a line for each slot, Grid Engine four words on a line, LSF hosts and slots in turn."""
    for name in ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_MCPU_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadRequest, match="runs in no job of PBS, Grid Engine or LSF") as caught:
        named_hosts(None, "job")
    assert caught.value.option == "hostfile"

    both = {"gpu1": 2, "gpu2": 1}
    monkeypatch.setenv("PBS_NODEFILE", str(hostfile("gpu1\ngpu1\ngpu2\n")))
    assert named_hosts(None, "job") == both
    monkeypatch.delenv("PBS_NODEFILE")
    monkeypatch.setenv("PE_HOSTFILE", str(hostfile("gpu1 2 all.q@gpu1 UNDEFINED\ngpu2 1 all.q@gpu2 UNDEFINED\n")))
    assert named_hosts(None, "job") == both
    monkeypatch.delenv("PE_HOSTFILE")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "gpu1 2 gpu2 1")
    assert named_hosts(None, "job") == both
    monkeypatch.setenv("LSB_MCPU_HOSTS", "gpu1 1 gpu2 1 gpu1 1")
    assert named_hosts(None, "job") == both
    for wrong in ("", "-oProxyCommand=x 1"):
        monkeypatch.setenv("LSB_MCPU_HOSTS", wrong)
        with pytest.raises(BadRequest, match="The list of the job's hosts cannot be read"):
            named_hosts(None, "job")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "gpu1 2 gpu2")
    with pytest.raises(BadRequest, match="The list of the job's hosts cannot be read"):
        named_hosts(None, "job")
