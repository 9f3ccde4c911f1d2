"""The probe on this machine: the facts, and where there are none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jupyter_dtrain.launch.programs import ProgramAnswer, Unreached
from jupyter_dtrain.preflight import probe
from jupyter_dtrain.preflight.probe import Facts
from jupyter_dtrain.preflight.reach import OWN, SSH, Program
from tests.preflight.asking import ask

FOLDER = Path(probe.__file__).parent
SMI = """#!/bin/sh
case "$*" in
*query-gpu*) echo "0, GPU-aa, NVIDIA H100, 3072, 81559, 580.65"; echo "1, GPU-bb, NVIDIA H100, 0, 81559, 580.65" ;;
*query-compute*) echo "GPU-aa, {pid}, 2048" ;;
*) echo "| NVIDIA-SMI 580.65    Driver Version: 580.65    CUDA Version: 13.0     |" ;;
esac
"""


def test_it_tells_what_this_machine_is():
    found = ask()

    assert found.unknown == {}
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.package.path == str(FOLDER.parent)
    assert found.packages["ipyparallel"].startswith("9.")
    assert found.cores == len(os.sched_getaffinity(0))
    assert 0 < found.memory.free <= found.memory.total <= psutil.virtual_memory().total
    assert found.shm.total > 0 < found.tmp.total
    assert set(found.limits) == {"memlock", "nofile", "nproc"}
    assert found.sent <= found.clock <= found.received
    assert found.skew == 0
    assert any(one.loopback and "127.0.0.1" in one.bare() for one in found.interfaces)


def test_an_empty_folder_of_its_name_is_no_package(bare_python, tmp_path, monkeypatch):
    """Python would import it, as a package without contents."""
    (tmp_path / OWN).mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert ask(python=str(bare_python)).kind == "no package"


def test_a_python_where_nothing_is_installed_lacks_the_package(bare_python, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = ask(python=str(bare_python))

    assert found.kind == "no package"
    assert found.reason == f"The package jupyter_dtrain is missing; {bare_python} does not find it."
    assert found.fix.startswith(f"Install it there: `{bare_python} -m pip install jupyter-dtrain==")


def test_a_python_that_lacks_one_of_our_requirements_is_told_with_its_name():
    """Of a part of our own, an older version may lack it: then the versions are the finding."""
    program = Program("jupyter_dtrain.preflight.probe", 10)

    def told(name):
        answer = ProgramAnswer("", f"ModuleNotFoundError: No module named '{name}'", 1, 1.0, 2.0)
        return program.read(answer, "python", Facts, SSH)

    psutil_, part = told("psutil"), told("jupyter_dtrain.preflight.probe")

    assert (psutil_.kind, part.kind) == ("failed", "failed")
    assert "could not run the check: ModuleNotFoundError: No module named 'psutil'" in psutil_.reason
    assert psutil_.fix.startswith("Install the package there again: `python -m pip install jupyter-dtrain")


def test_a_module_in_the_working_directory_does_not_break_it(tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit('this is mine')")
    (tmp_path / "socket.py").write_text("raise SystemExit('this is mine')")
    monkeypatch.chdir(tmp_path)

    assert ask().package is not None


def test_words_of_a_shell_around_the_answer_are_passed_over():
    program = Program("jupyter_dtrain.preflight.probe", 10)
    answer = ProgramAnswer(f'Welcome!\n{{}}\n{program.nonce} {{"python": "3.11.2"}}\nBye', "", 0)

    assert program.read(answer, "python", Facts).python == "3.11.2"
    assert isinstance(program.read(ProgramAnswer("Welcome!", "", 0), "python", Facts), Unreached)


def test_a_python_that_is_too_old_is_told_with_its_last_words(tmp_path):
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\ncat > /dev/null\necho 'SyntaxError: invalid syntax' >&2\nexit 1\n")
    old.chmod(0o755)
    found = ask(python=str(old))

    assert found.kind == "failed"
    assert "could not run the check: SyntaxError: invalid syntax" in found.reason


def test_facts_that_take_too_long_are_left_out(tmp_path, monkeypatch):
    """The driver's program hangs: the facts that came before are told, within the time."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = ask(seconds=1)

    assert found.received - found.sent < 6
    assert found.package is not None
    assert found.nvidia is None


def test_gpus_are_told_with_their_holders_and_worlds(tmp_path, monkeypatch, orphan, world):
    """The driver's program is a stand-in that prints what the real one does."""
    pid = orphan(world)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI.format(pid=pid))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = ask().nvidia

    assert (found.driver, found.cuda) == ("580.65", "13.0")
    assert [(one.index, one.name, one.used >> 20, one.total >> 20) for one in found.gpus] == [
        (0, "NVIDIA H100", 3072, 81559),
        (1, "NVIDIA H100", 0, 81559),
    ]
    [holder] = found.gpus[0].held_by
    assert (holder.pid, holder.world, holder.used) == (pid, world, 2 << 30)
    assert holder.command.startswith("python")


def test_devices_are_read_with_their_ports(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "INFINIBAND", tmp_path)
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (tmp_path / "mlx5_0" / "device" / "net" / "ib0").mkdir(parents=True)
    for name, text in (("link_layer", "InfiniBand"), ("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)")):
        (port / name).write_text(f"{text}\n")
    down = tmp_path / "mlx5_1" / "ports" / "1"
    down.mkdir(parents=True)
    for name, text in (("link_layer", "Ethernet"), ("state", "1: DOWN"), ("rate", "")):
        (down / name).write_text(f"{text}\n")

    assert [(one.device, one.layer, one.active, one.interfaces) for one in probe.devices()] == [
        ("mlx5_0", "InfiniBand", True, ["ib0"]),
        ("mlx5_1", "Ethernet", False, []),
    ]


def test_the_interfaces_are_those_that_the_program_ip_tells():
    ip = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
    if ip is None:
        pytest.skip("needs the program ip")
    told = json.loads(subprocess.run([ip, "-j", "addr"], capture_output=True, check=True, timeout=30).stdout)
    with_ip = {one["ifname"]: one for one in told}
    found = {one.name: one for one in probe.interfaces()}

    assert set(found) == set(with_ip)
    for name, one in found.items():
        other = with_ip[name]
        assert one.loopback == ("LOOPBACK" in other["flags"])
        assert one.up == ("UP" in other["flags"] and other["operstate"] != "DOWN")
        assert set(one.addresses) == {f"{each['local']}/{each['prefixlen']}" for each in other["addr_info"]}


def test_a_file_is_seen_if_it_holds_the_nonce(tmp_path):
    file = tmp_path / "nonce"
    file.write_text("abc")
    shared = {"path": str(file), "nonce": "abc"}

    assert ask(shared=shared).shared is True
    assert ask(shared={**shared, "nonce": "other"}).shared is False
    assert ask(shared={**shared, "path": str(tmp_path / "none")}).shared is False
