"""Several hosts on one machine, as real as it gets: each has its own network, name, home, temporary folders and sshd.

A host is a set of namespaces. Its home, ``/tmp``, ``/var/tmp``, ``/dev/shm`` and ``/run`` are its own and in memory;
the rest of the file system is this machine's, as software that is installed on every host, and can only be read there:
a test that deletes too much on a host deletes nothing of this machine. It sees its own processes only. A cable joins it
to a switch, and a further one joins this machine, whose tests play the part of the notebook::

    with Network(hosts=2) as network:
        subprocess.run([*network.ssh("gpu1"), "hostname"])
        network.hosts[1].cut()

Hosts know each other's names; this machine knows them by ``network.ssh_config`` alone, as aliases. A host has no key
that opens another. Nothing routes to any other network.

Everything goes when the block ends, and when this process is killed, but for a temporary folder with the keys: see
:class:`tests.hosts.enclosure.Enclosure`.
:func:`why_not` says in words what is missing where this cannot be.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.hosts.enclosure import KINDS, PATH, PATIENCE, Enclosure, wait_for

ROOT = Path(__file__).parents[2]
CABLE = Path(__file__).with_name("cable.py")
TOOLS = ("ip", "nsenter", "sshd", "ssh", "ssh-keygen", "tcpdump", "unshare")
SUBNETS = 4096
"""Each has 16 addresses of 10.231.0.0/16, of which hosts can have 13."""
MOST = 13
SSHD = """
Port 22
HostKey /run/host/host_key
AuthorizedKeysFile /run/host/authorized_keys
AuthenticationMethods publickey
PermitRootLogin prohibit-password
PidFile none
StrictModes no
UseDNS no
UsePAM no
MaxStartups 100
Subsystem sftp internal-sftp
"""
_numbers = itertools.count()


def why_not() -> str | None:
    """Why this machine cannot have such hosts, in words; ``None`` where it can."""
    if os.geteuid() != 0:
        return "hosts as network namespaces need root"
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]:
        return f"hosts as network namespaces need {', '.join(missing)}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "hosts as network namespaces need /dev/net/tun"
    tried = subprocess.run(
        [
            "unshare",
            *KINDS,
            "--fork",
            "--mount-proc",
            "sh",
            "-euc",
            "mount -t tmpfs tmpfs /run; mount -o remount,bind,ro /; ip link add name br type bridge",
        ],
        env=os.environ | {"PATH": PATH},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else None


class Host:
    """One host of a network."""

    def __init__(self, network: Network, name: str, address: str, folder: Path) -> None:
        self.name = name
        self.address = address
        self.log = folder / "log"
        """The words of its sshd."""
        self._network = network
        self._cable: subprocess.Popen[str] | None = None
        _make_key(folder / "host_key")
        (folder / "authorized_keys").write_text(network.key.with_suffix(".pub").read_text())
        (folder / "sshd_config").write_text(SSHD)
        self._inside = Enclosure([f"hostname {name}", *_mounts(folder, network.shared), "ip link set lo up"])
        with contextlib.ExitStack() as stack:
            stack.callback(self._inside.close)
            self._plug_in()
            self._serve()
            self._given = self._in_temporary_folders()
            stack.pop_all()

    def _plug_in(self) -> None:
        self._network.switch.link(self.name, self._inside, "eth0")
        self._inside.run(["ip", "address", "add", f"{self.address}/28", "dev", "eth0"])
        self._inside.run(["ip", "link", "set", "eth0", "up"])
        self._network.plug(self.name)

    def _serve(self) -> None:
        sshd = shutil.which("sshd", path=PATH)
        assert sshd is not None
        with self.log.open("w") as log:
            words = [sshd, "-D", "-e", "-f", "/run/host/sshd_config"]
            self._sshd = self._inside.popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        (listener,) = wait_for(psutil.Process(self._sshd.pid).children, f"The sshd of {self.name} does not start")
        self.listener = listener.pid
        """The process id of its sshd, on this machine: what it may use, logins inherit."""
        wait_for(self._greets, f"The sshd of {self.name} says nothing, see {self.log}")

    @property
    def public_key(self) -> str:
        """The key that this host shows to those who call it."""
        return (self.log.parent / "host_key.pub").read_text().strip()

    def command(self, words: list[str]) -> list[str]:
        """The command that runs these words on this host without ssh, with this process's environment."""
        return self._inside.command(words)

    def run(self, words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on this host without ssh; raises where it fails, unless ``check=False``."""
        return self._inside.run(words, **options)

    def popen(self, words: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start a command on this host without ssh."""
        return self._inside.popen(words, **options)

    def processes(self) -> list[int]:
        """The ids, on this machine, of the host's processes, other than those that make it a host."""
        return [pid for pid in self._inside.processes() if pid not in self._inside.own | {self.listener}]

    def _in_temporary_folders(self) -> set[str]:
        return set(self.run(["sh", "-c", "ls /tmp /dev/shm /var/tmp"], capture_output=True).stdout.split())

    def temporary_files(self) -> list[str]:
        """The names among temporary files and in memory, other than those of software that lies there on this machine.

        A cache of torch's compiler counts as software: any program that uses the compiler leaves one.
        """
        found = self._in_temporary_folders() - self._given
        return sorted(name for name in found if not name.startswith(("/", "torchinductor_")))

    def pid_here(self, pid: int) -> int:
        """The id, on this machine, of the process that has the id ``pid`` on the host."""
        for process in self.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                if status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1] == str(pid):
                    return process
        raise ProcessLookupError(f"{self.name} has no process {pid}")

    def cut(self) -> None:
        """Pull the cable out of the switch."""
        self._network.switch.run(["ip", "link", "set", self.name, "down"])

    def join(self) -> None:
        """Put the cable back."""
        self._network.switch.run(["ip", "link", "set", self.name, "up"])

    def impair(
        self,
        *,
        delay: float = 0.0,
        loss: float = 0.0,
        block: tuple[int, ...] = (),
        closed: bool = False,
        target: str = "",
    ) -> None:
        """Delay all frames by seconds, each way, lose this part of them, and drop TCP to these ports, each way.

        ``closed``: drop all that asks this host for a connection, but for ssh, as a usual firewall does. ``target``: an
        address; drop only what this host asks of it: connections to the ports in ``block``, or to all but ssh's.
        """
        self.restore()
        switch, plug = self._network.switch, f"{self.name}-far"
        words = [
            sys.executable,
            "-I",
            str(CABLE),
            self.name,
            plug,
            str(delay),
            str(loss),
            target or ("closed" if closed else "open"),
        ]
        words += map(str, block)
        self._cable = switch.popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._cable.stdout is not None
        if self._cable.stdout.readline() != "ready\n":
            raise RuntimeError(
                f"The bad cable of {self.name} did not start; it ended with {self._cable.wait(PATIENCE)}."
            )
        switch.run(["ip", "link", "set", self.name, "nomaster"])
        self._network.plug(plug)

    def restore(self) -> None:
        """Give the host a good cable again."""
        if self._cable is None:
            return
        programs = psutil.Process(self._cable.pid).children()
        for program in programs:
            program.kill()
        # The next cable takes the same name, which is free once this program has closed its end.
        psutil.wait_procs(programs, timeout=20)
        self._cable.kill()
        with self._cable:
            self._cable = None
        self._network.switch.run(["ip", "link", "set", self.name, "master", "switch"])

    @contextlib.contextmanager
    def captured(self, path: Path) -> Iterator[None]:
        """Write all frames that pass the host's end of the cable into a file, for ``tcpdump -r`` and for searching."""
        words = ["tcpdump", "--immediate-mode", "-i", self.name, "-s", "0", "-U", "-Z", "root", "-w", str(path)]
        with self._network.switch.popen(words, stderr=subprocess.PIPE) as nsenter:
            assert nsenter.stderr is not None
            first = nsenter.stderr.readline()
            while first and "listening on" not in first:
                first = nsenter.stderr.readline()
            try:
                yield
            finally:
                for child in psutil.Process(nsenter.pid).children():
                    child.terminate()
                nsenter.wait(PATIENCE)

    def hide(self, path: str | Path) -> None:
        """Lay an empty folder over a folder of this host, as if nothing were installed there."""
        self.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(path)])

    @contextlib.contextmanager
    def without_package(self) -> Iterator[None]:
        """This package is missing on this host meanwhile."""
        package = ROOT / "jupyter_dtrain"
        self.hide(package)
        try:
            yield
        finally:
            self.run(["umount", str(package)])

    def replace(self, path: str | Path, text: str) -> None:
        """Lay a file with this text over a file of this host, with the same rights."""
        self.run(["mkdir", "-p", "/run/replaced"])
        other = f"/run/replaced/{str(path).replace('/', '_')}"
        self.run(["tee", other], input=text)
        self.run(["chmod", f"--reference={path}", other])
        self.run(["mount", "--bind", other, str(path)])

    def kill(self) -> None:
        """Take the power away: every process is gone at once, and the link with them."""
        self._inside.kill()

    def close(self) -> None:
        """End all processes of this host."""
        if self._cable is not None:
            self._cable.kill()
            self._cable.__exit__(None, None, None)
        self._inside.close()
        self._sshd.wait(PATIENCE)

    def _greets(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, 22), 1) as connection:
            return connection.recv(4) == b"SSH-"
        return False


class Network:
    """Hosts named gpu1, gpu2, … at one switch, to which this machine is joined as well."""

    def __init__(self, hosts: int = 2, shared: Path | None = None) -> None:
        assert 1 <= hosts <= MOST
        self.shared = shared
        """A folder among this machine's temporary ones that the hosts see too, under the same path, and may write."""
        self.names = [f"gpu{number}" for number in range(1, hosts + 1)]
        self.hosts: list[Host] = []
        self.subnet = ""
        """The addresses of the network, such as ``10.231.7.32/28``."""
        self.address = ""
        """The address of this machine on the network."""
        self.link = f"dt{os.getpid()}-{next(_numbers)}"
        """The interface of this machine that reaches the hosts."""

    def __enter__(self) -> Network:  # noqa: PYI034 — Self needs Python 3.11
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hosts-")))
            self.key = self.folder / "key"
            _make_key(self.key)
            self.switch = Enclosure()
            stack.callback(self._check_gone)
            stack.callback(self.switch.close)
            self.switch.run(["ip", "link", "add", "name", "switch", "type", "bridge"])
            self.switch.run(["ip", "link", "set", "switch", "up"])
            base = self._join_this_machine()
            addresses = {name: _address(base + 2 + number) for number, name in enumerate(self.names)}
            lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
            for name, address in addresses.items():
                folder = self.folder / name
                folder.mkdir()
                (folder / "hosts").write_text("".join(f"{line}\n" for line in [*lines, f"{self.address} notebook"]))
                host = Host(self, name, address, folder)
                stack.callback(host.close)
                self.hosts.append(host)
            self._write_ssh_config()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Host:
        return self.hosts[self.names.index(name)]

    @property
    def ssh_config(self) -> Path:
        """For ``ssh -F``: aliases of the hosts, the key that opens them, and the keys that they show."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The hosts' keys as the user's ssh knows them; a test may write others into it."""
        return self.folder / "known_hosts"

    def ssh(self, name: str, *options: str) -> list[str]:
        """The command, without the remote one, that reaches a host without ever asking a question."""
        return ["ssh", "-F", str(self.ssh_config), "-o", "BatchMode=yes", *options, name]

    def plug(self, port: str) -> None:
        """Join an interface in the switch's namespace to the switch."""
        self.switch.run(["ip", "link", "set", port, "master", "switch", "up"])

    def _join_this_machine(self) -> int:
        """Join this machine by a subnet that it does not use yet; the subnet's first address as a number."""
        used = {each.address for all_of in psutil.net_if_addrs().values() for each in all_of}
        first = (os.getpid() * 7 + next(_numbers)) % SUBNETS
        bases = ((10 << 24) + (231 << 16) + 16 * ((first + number) % SUBNETS) for number in range(SUBNETS))
        base = next(base for base in bases if _address(base + 1) not in used)
        self.address, self.subnet = _address(base + 1), f"{_address(base)}/28"
        ip = shutil.which("ip", path=PATH)
        assert ip is not None
        peer = ["peer", "name", "notebook", "netns", str(self.switch.pid)]
        subprocess.run([ip, "link", "add", "name", self.link, "type", "veth", *peer], check=True, timeout=PATIENCE)
        subprocess.run([ip, "address", "add", f"{self.address}/28", "dev", self.link], check=True, timeout=PATIENCE)
        subprocess.run([ip, "link", "set", self.link, "up"], check=True, timeout=PATIENCE)
        self.plug("notebook")
        return base

    def _write_ssh_config(self) -> None:
        self.known_hosts.write_text("".join(f"{host.name} {host.public_key}\n" for host in self.hosts))
        aliases = "".join(
            f"Host {host.name}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n" for host in self.hosts
        )
        self.ssh_config.write_text(
            f"{aliases}Host *\n  User root\n  StrictHostKeyChecking yes\n"
            f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        )

    def _check_gone(self) -> None:
        """The kernel takes namespaces down by and by; the link of this machine goes with the switch's."""
        wait_for(lambda: self.link not in psutil.net_if_addrs(), f"{self.link} is still there")


def _mounts(folder: Path, shared: Path | None) -> list[str]:
    """The lines of a shell script that give a host its own folders, and what of them must still be seen."""
    own = {Path(pwd.getpwuid(os.getuid()).pw_dir), Path.home(), Path(tempfile.gettempdir())}
    own |= {Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")}
    own = {path.resolve() for path in own}
    tops = sorted(path for path in own if not any(other in path.parents for other in own))
    software: list[str] = [str(ROOT), sys.prefix, sys.base_prefix, *sys.path]
    seen = {Path(word).resolve() for word in software if word and Path(word).is_dir()}
    lines = [
        "mount -t tmpfs -o mode=755 tmpfs /run",
        "mkdir -p /run/sshd /run/stage/cgroup",
        "mount --rbind /sys/fs/cgroup /run/stage/cgroup",
        "mount -t sysfs sysfs /sys",  # shows the interfaces of the host
        "mount --move /run/stage/cgroup /sys/fs/cgroup",
        f"cp -r {shlex.quote(str(folder))} /run/host",
        "chmod 600 /run/host/*",
        "mount --bind /run/host/hosts /etc/hosts",
    ]
    for number, top in enumerate(tops):
        stage = Path(f"/run/stage/{number}")
        lines += [f"mkdir {stage}", f"mount -t tmpfs -o mode={top.stat().st_mode & 0o7777:o} tmpfs {stage}"]
        inner = [path for path in seen if top in path.parents]
        for path in sorted(path for path in inner if not any(other in path.parents for other in inner)):
            target = stage / path.relative_to(top)
            source, place = shlex.quote(str(path)), shlex.quote(str(target))
            lines += [f"mkdir -p {place}", f"mount --bind {source} {place}", f"mount -o remount,bind,ro {place}"]
        if shared is not None and top in shared.parents:
            source, place = shlex.quote(str(shared)), shlex.quote(str(stage / shared.relative_to(top)))
            lines += [f"mkdir -p {place}", f"mount --bind {source} {place}"]
        lines += [f"mkdir -p {shlex.quote(str(stage / path.relative_to(top)))}" for path in own if top in path.parents]
    lines += [f"mount --move /run/stage/{number} {shlex.quote(str(top))}" for number, top in enumerate(tops)]
    disks = {"/", *(disk.mountpoint for disk in psutil.disk_partitions())} - {str(top) for top in tops}
    lines += [f"mount -o remount,bind,ro {shlex.quote(disk)}" for disk in sorted(disks, reverse=True)]
    return lines


def _make_key(path: Path) -> None:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.parent.name, "-f", str(path)]
    subprocess.run(words, check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)


def _address(number: int) -> str:
    return socket.inet_ntoa(number.to_bytes(4, "big"))
