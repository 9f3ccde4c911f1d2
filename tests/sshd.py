"""An ssh server of the tests' own on 127.0.0.1, with its own keys, and a client's configuration: its aliases are hosts.

Several aliases lead to the same server by different ports, so one machine counts as several hosts.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

PATIENCE = 10.0
"""Seconds in which the server must answer."""
QUIET = {"SHLVL": "1"}
"""What programs on a host have beside their own variables: bash believes that another shell started it, and reads no
``~/.bashrc``. That of the person who runs the tests may print: two ``pyenv init`` at once do."""
TRIES = 5
"""Starts of the server: another process may take a port that was free."""


def find_sshd() -> str:
    """The path of sshd; skips the test where there is none."""
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH's client and server")
    return found


class SshServer:
    """``with SshServer(folder, {"a": {"PATH": ...}, "b": {}}) as server``: a port for each host.

    The values are the variables that programs on that host have, and perhaps ``ForceCommand``.
    """

    def __init__(self, folder: Path, hosts: Mapping[str, Mapping[str, str]]) -> None:
        self.sshd = find_sshd()
        self.folder = folder
        self.hosts = hosts
        self.config = folder / "config"
        self.known = folder / "known_hosts"
        self.ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self):
        for name in ("host", "user", "other"):
            self._run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        if os.getuid() == 0:
            # The service makes it when it starts; without it sshd refuses to run as root.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for _ in range(TRIES):
            if self._start():
                return self
        raise AssertionError((self.folder / "log").read_text())

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def args(self) -> str:
        """Options that let ssh find the aliases."""
        return f"-F {shlex.quote(str(self.config))}"

    def alias(self, name: str, **lines: object) -> str:
        """Add a host to the client's configuration: ``alias("shut", Port=1)``. Returns its name."""
        defaults = {
            "HostName": "127.0.0.1",
            "User": getpass.getuser(),
            "IdentityFile": self.folder / "user",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "ask",
        }
        text = "".join(f"  {key} {value}\n" for key, value in {**defaults, **lines}.items())
        with open(self.config, "a") as file:
            file.write(f"Host {name}\n{text}")
        return name

    def trust(self, name: str, key: str = "host") -> None:
        """Let ssh know the server's key (or another ``key``) by this name."""
        words = (self.folder / f"{key}.pub").read_text().split()
        with open(self.known, "a") as file:
            file.write(f"{name} {words[0]} {words[1]}\n")

    def _start(self) -> bool:
        self.config.write_text("")
        self.known.write_text("")
        for name in self.hosts:
            self.ports[name] = free_port()
            self.alias(name, Port=self.ports[name])
            self.trust(f"[127.0.0.1]:{self.ports[name]}")
        self._process = self._listen()
        deadline = time.monotonic() + PATIENCE
        waits = set(self.ports.values())
        while waits and self._process.poll() is None:
            assert time.monotonic() < deadline, "sshd does not answer"
            waits = {port for port in waits if not self._answers(port)}
        return not waits

    def _listen(self) -> subprocess.Popen[bytes]:
        lines = [
            *(f"Port {port}" for port in self.ports.values()),
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder / 'host'}",
            f"AuthorizedKeysFile {self.folder / 'user.pub'}",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            "MaxStartups 100",
            "LogLevel ERROR",
        ]
        for name, variables in self.hosts.items():
            lines.append(f"Match LocalPort {self.ports[name]}")
            if "ForceCommand" in variables:
                lines.append(f"  ForceCommand {variables['ForceCommand']}")
            given = {key: value for key, value in variables.items() if key != "ForceCommand"}
            words = " ".join(
                f'"{key}={value}"' for key, value in ({"PYTHONPATH": path_of_tests()} | QUIET | given).items()
            )
            lines.append(f"  SetEnv {words}")
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")
        with open(self.folder / "log", "wb") as log:
            return subprocess.Popen(
                [self.sshd, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _answers(self, port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as one:
                return one.recv(4) == b"SSH-"
        except OSError:
            return False

    @staticmethod
    def _run(*command: str) -> None:
        subprocess.run(command, check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, capture_output=True)


def path_of_tests() -> str:
    """The folders from which this process imports, beyond its interpreter's own: a host finds the same package."""
    return os.pathsep.join(path for path in sys.path if path and not path.startswith(sys.base_prefix))


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
