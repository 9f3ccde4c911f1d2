"""Programs on other hosts: against a real ssh server, with each way in which a host can be out of reach."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import sys
import threading
import time

import psutil
import pytest

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.launch.programs import ProgramAnswer, Unreached, run_here, run_on
from jupyter_dtrain.launch.ssh import Ssh
from tests.pace import slack
from tests.processes import processes_of, wait_until_gone
from tests.sshd import SshServer, free_port
from tests.steward.until import until

ODD = 'it\'s a $HOME `id` "quoted" \\ text;\n*&|<> ~ é'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that counts as two hosts, a and b."""
    with SshServer(tmp_path_factory.mktemp("sshd"), {"a": {}, "b": {}}) as one:
        yield one


@pytest.fixture(scope="module")
def ssh(server):
    """The way to it."""
    return Ssh.parse(server.args)


def test_a_program_runs_on_several_hosts_at_once(ssh):
    """Its input, output, errors and exit code come as they are."""
    code = "import sys; print(sys.stdin.read()); print('odd', file=sys.stderr); sys.exit(3)"
    found = run_on(["a", "b"], [sys.executable, "-c", code], carrier=ssh, timeout=20, stdin={"a": "one", "b": "two"})

    assert list(found) == ["a", "b"]
    assert [(one.output, one.errors, one.code) for one in found.values()] == [
        ("one\n", "odd\n", 3),
        ("two\n", "odd\n", 3),
    ]
    assert all(one.sent < one.received <= time.time() for one in found.values())


def test_words_of_a_command_arrive_as_they_were_sent(ssh):
    """The shell there changes none of them."""
    code = "import sys; print(sys.argv[1:])"
    found = run_on(["a"], [sys.executable, "-c", code, ODD, ""], carrier=ssh, timeout=20)["a"]

    assert found.output == f"{[ODD, '']}\n"


def test_a_program_in_the_home_there_can_be_named(ssh, tmp_path):
    """``~`` is the home of the user there."""
    found = run_on(["a"], ["~/no such program"], carrier=ssh, timeout=20)["a"]

    assert found.kind == "no program"
    assert f"{pwd.getpwuid(os.getuid()).pw_dir}/no such program" in found.said


def test_the_program_takes_the_place_of_the_shell(ssh):
    """So a signal to it reaches it, and no shell stays behind."""
    code = "import os; print(open(f'/proc/{os.getppid()}/comm').read())"

    assert run_on(["a"], [sys.executable, "-c", code], carrier=ssh, timeout=20)["a"].output.startswith("sshd")


def unreached(server, host, timeout=20.0, args=""):
    """Why ``host`` cannot be used."""
    found = run_on([host], ["true"], carrier=Ssh.parse(f"{server.args} {args}"), timeout=timeout)[host]
    assert isinstance(found, Unreached), found
    return found


def test_a_host_key_that_changed_names_the_line_that_forgets_the_old_one(server):
    server.alias("changed", Port=server.ports["a"], HostKeyAlias="changed")
    server.trust("changed", "other")
    found = unreached(server, "changed")

    assert found.kind == "host key changed"
    assert f'`ssh-keygen -f "{server.known}" -R "changed"`' in found.fix
    assert f"`ssh -F {server.config} changed`" in found.fix


def test_an_unknown_host_key_is_refused_without_a_question(server):
    server.alias("stranger", Port=server.ports["a"], HostKeyAlias="stranger")
    found = unreached(server, "stranger")

    assert found.kind == "host key unknown"
    assert found.fix == f"Run `ssh -F {server.config} stranger` once in a terminal and accept the key."


def test_a_host_that_takes_no_key_is_not_asked_with_a_password(server):
    """Not even if the person's own options say so."""
    server.alias("locked", Port=server.ports["a"], IdentityFile=server.folder / "other")
    found = unreached(server, "locked", args="-o BatchMode=no")

    assert found.kind == "permission denied"
    assert "ssh-copy-id" in found.fix


def test_an_unknown_host_is_named(server):
    server.alias("nowhere", HostName="no-such-host.invalid")
    found = unreached(server, "nowhere")

    assert (found.kind, found.reason) == ("unknown host", "No host is known by the name nowhere.")


def test_a_port_without_a_server_is_refused(server):
    server.alias("shut", Port=free_port())

    assert unreached(server, "shut").kind == "refused"
    assert unreached(server, "a", args=f"-p {free_port()}").kind == "refused", "a person's own options count first"


def test_a_host_that_does_not_answer_costs_the_time_of_a_connection(server):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.alias("silent", Port=silent.getsockname()[1])
        found = unreached(server, "silent", args="-o ConnectTimeout=1")

    assert found.kind == "timed out"


def test_hosts_share_one_deadline_and_leave_no_process(server):
    """The host that answers is not lost with the one that does not."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server.alias("mute", Port=silent.getsockname()[1])
        began = time.monotonic()
        found = run_on(["a", "mute"], ["true"], carrier=Ssh.parse(server.args), timeout=2)
        took = time.monotonic() - began

    assert isinstance(found["a"], ProgramAnswer)
    assert found["mute"].kind == "timed out"
    assert found["mute"].reason == "There was no answer within 2 s."
    assert took < 2 + slack()
    assert [one for one in processes_of(str(server.config)) if "sshd" not in one] == []


def test_a_missing_program_is_told_from_a_host_out_of_reach(ssh):
    found = run_on(["a"], ["/no/such/python", "-"], carrier=ssh, timeout=20)["a"]

    assert found.kind == "no program"
    assert "/no/such/python" in found.reason
    assert "--python" in found.fix


def test_options_that_ssh_refuses_are_named(server):
    found = unreached(server, "a", args="-o NoSuchOption=1")

    assert found.kind == "bad options"
    assert "nosuchoption" in found.reason.lower()


def test_a_remote_command_of_the_configuration_is_named(server):
    server.alias("menu", Port=server.ports["a"], RemoteCommand="menu")

    assert "RemoteCommand" in unreached(server, "menu").reason


def test_a_machine_without_ssh_says_so(ssh, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert run_on(["a"], ["true"], carrier=ssh, timeout=5)["a"].kind == "no ssh"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu1", "'gpu1' is no option of ssh: hosts belong to --hosts"),
        ("-v gpu1", "'gpu1' is no option"),
        ("-p 22 --", "'--' is no option"),
        ("-4Nv", "ssh's option -N runs no program. Leave it out."),
        ("-tt", "asks for a terminal"),
        ("-i", "the option -i of ssh needs a value"),
        ("-i 'key", "cannot be split"),
    ],
)
def test_options_with_which_no_program_can_run_are_refused(text, words):
    with pytest.raises(BadRequest, match=words) as caught:
        Ssh.parse(text)

    assert caught.value.option == "ssh_args"


def test_a_persons_options_stand_before_ours(server):
    """ssh takes the first of several values. That it asks nobody stands before all others."""
    assert Ssh.parse("-o BatchMode=no").ask_config("a")["batchmode"] == "yes"
    assert Ssh.parse("-p2222 -4 -o ConnectTimeout=9 -i~/key").args[0] == "-p2222"
    assert Ssh.parse(f"{server.args} -o ConnectTimeout=9").ask_config("a")["connecttimeout"] == "9"
    assert Ssh.parse(server.args).ask_config("a")["connecttimeout"] == "5"
    assert Ssh.parse(server.args).ask_config("a")["port"] == str(server.ports["a"])


def test_an_ipv6_address_goes_to_ssh_without_brackets():
    assert Ssh().command("me@[fd00::1]", ["true"])[0][-3:] == ["--", "me@fd00::1", "exec true"]


def test_stop_ends_the_connections_at_once(server, ssh, tmp_path):
    """Ctrl-C in a notebook raises where the results are awaited. The programs there end when they next speak."""
    code = "import sys, time\nwhile True: print(sys.argv[1], flush=True); time.sleep(0.05)"
    mark = str(tmp_path / "talker")

    def press_stop():
        until(lambda: len([one for one in processes_of(mark) if "ssh" not in one]) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press_stop)
    presser.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_on(["a", "b"], [sys.executable, "-c", code, mark], carrier=ssh, timeout=60)
    presser.join()

    assert time.monotonic() - began < 30
    assert wait_until_gone(mark) == []


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_noticed_within_ten_seconds(server, ssh, tmp_path):
    """Its server stops in the middle of a program, as if the network were gone; ssh asks it three times."""
    mark = str(tmp_path / "sleeper")
    code = "import time; time.sleep(40)"
    stopped = []

    def sleeper():
        for one in psutil.Process(server.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if mark in one.cmdline():
                    return one
        return None

    def cut():
        one = until(sleeper)
        session = one.parent()
        stopped.append((one, session, time.monotonic()))
        session.suspend()

    cutter = threading.Thread(target=cut)
    cutter.start()
    found = run_on(["a"], [sys.executable, "-c", code, mark], carrier=ssh, timeout=60)["a"]
    cutter.join()
    [(one, session, at)] = stopped
    took = time.monotonic() - at
    one.kill()
    session.resume()

    assert found.kind == "timed out"
    assert "not responding" in found.said
    assert took < 8 + slack()


def test_this_machine_runs_programs_in_the_same_manner():
    code = "import sys; print(sys.stdin.read())"

    assert run_here([sys.executable, "-c", code], timeout=20, stdin="hello").output == "hello\n"
    assert run_here([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5).kind == "timed out"
    assert run_here(["/no/such/python"], timeout=5).kind == "no program"
