"""Programs on other hosts, over the ssh of this machine.

ssh itself resolves names and aliases, reads ``~/.ssh/config`` and finds keys; nothing here speaks its protocol. No
command can wait for a person: ssh may ask for neither a password nor the trust in a host's key, and has no terminal.

Secrets and variables for a remote program go to its standard input. A command line has none: other users can read it.

Under failure: nothing raises for a host. :mod:`.programs` starts and ends the commands, and :meth:`Ssh.explain` finds
reason and fix in the words of ssh.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from typing import Final

import msgspec

from jupyter_dtrain.core.errors import BadRequest

from .programs import NOT_RUN, Kind, ProgramAnswer, Unreached

CONNECT_PATIENCE: Final = 5
"""Seconds that ssh waits for a connection, unless ``ssh_args`` say otherwise."""
CONFIG_PATIENCE: Final = 2.5
"""Seconds that ssh may take to tell what it would connect to."""
SSH_FAILED: Final = 255
"""The exit code with which ssh reports a failure of its own."""


class Ssh(msgspec.Struct, frozen=True):
    """Calls ssh with a person's options and ours."""

    args: tuple[str, ...] = ()
    """A person's own options. They override ours, except those that keep ssh from asking questions."""

    @classmethod
    def parse(cls, text: str) -> Ssh:
        """Options as in a shell, such as ``-p 2222 -i ~/.ssh/cluster``.

        Raises :class:`BadRequest` (option ``ssh_args``) for words that are no options, and for options with which no
        program can be run, such as ``-N``.
        """
        try:
            found = cls.split(text)
        except ValueError as error:
            raise BadRequest(f"The options for ssh, {text!r}, cannot be split: {error}.", option="ssh_args") from None
        _check_args(found.args)
        return found

    @classmethod
    def split(cls, text: str) -> Ssh:
        """Options from a text that :meth:`parse` has accepted before."""
        words = [os.path.expanduser(word) for word in shlex.split(text)]  # noqa: PTH111 — a Path would lose ./
        return cls(tuple(words))

    def command(self, host: str, program: Sequence[str]) -> tuple[list[str], str]:
        """The command that runs ``program`` on ``host``. ``~/`` at its beginning stands for the home there.

        ssh reads nothing before the program's own input.
        """
        return [*self.call(), "--", target(host), quote(program)], ""

    def explain(self, answer: ProgramAnswer, host: str, program: str) -> ProgramAnswer | Unreached:
        """``answer``, or why ``program`` did not run on ``host`` at all."""
        said = answer.errors.strip()
        if answer.code in NOT_RUN:
            return Unreached(
                "no program",
                f"{program} cannot be run there: {_last_line(said)}",
                "Install it there, or name its path on the hosts with --python.",
                said,
            )
        if answer.code != SSH_FAILED:
            return answer
        for pattern, kind, reason, fix in _CAUSES:
            if re.search(pattern, said):
                # ssh names the file and the entry, which no one else knows: an alias may stand for them.
                remove = re.search(r"ssh-keygen -f .*", said)
                words = {
                    "host": host,
                    "line": self.by_hand(host),
                    "remove": remove[0].strip() if remove else f"ssh-keygen -R {target(host)}",
                    "said": _last_line(said),
                }
                return Unreached(kind, reason.format(**words), fix.format(**words), said)
        reason = f"ssh ended before the program did: {_last_line(said)}"
        return Unreached("failed", reason, f"See whether `{self.by_hand(host)}` works in a terminal.", said)

    def by_hand(self, host: str) -> str:
        """The line with which a person connects to ``host`` in a terminal."""
        return shlex.join(["ssh", *self.args, target(host)])

    def ask_config(self, host: str) -> dict[str, str]:
        """The values that ssh would use for ``host``, by lower-case name; empty if ssh gives none.

        A name with several values has its first. It connects to nothing.
        """
        try:
            said = subprocess.run(
                [*self.call(), "-G", "--", target(host)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CONFIG_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return {}
        found: dict[str, str] = {}
        for line in said.stdout.splitlines() if said.returncode == 0 else ():
            name, _, value = line.partition(" ")
            found.setdefault(name.lower(), value)
        return found

    def call(self, *more: str) -> list[str]:
        """The beginning of every command: ssh and its options."""
        # ssh takes the first of several values for one option, so a person's options stand before ours.
        return ["ssh", *_FIXED, *self.args, *more, *_DEFAULTS]


_FIXED: Final = ("-T", "-x", "-o", "BatchMode=yes")
"""No terminal, no windows, no question: with BatchMode, ssh refuses an unknown host key where it would ask."""
_DEFAULTS: Final = (
    # Its messages tell a lost connection apart from a program that was killed there.
    "-o",
    "LogLevel=INFO",
    "-o",
    f"ConnectTimeout={CONNECT_PATIENCE}",
    # A host that is cut off is noticed after 6 to 8 s.
    "-o",
    "ServerAliveInterval=2",
    "-o",
    "ServerAliveCountMax=3",
    # A connection that is shared with others would end with them, and one that stays open would outlive its owner.
    "-o",
    "ControlMaster=no",
    "-o",
    "ControlPath=none",
    "-o",
    "ClearAllForwardings=yes",
)

_WITH_VALUE: Final = "BbcDEeFIiJLlmOoPpQRSWw"
_REFUSED: Final = {
    "E": "hides its errors",
    "f": "leaves it in the background",
    "G": "only prints its options",
    "M": "shares a connection",
    "N": "runs no program",
    "n": "takes away its input",
    "O": "runs no program",
    "Q": "runs no program",
    "s": "runs no program",
    "t": "asks for a terminal",
    "V": "only prints its version",
    "W": "runs no program",
    "y": "hides its errors",
}


def target(host: str) -> str:
    """The name of ``host`` as ssh takes it: an IPv6 address without its brackets."""
    user, at, name = host.rpartition("@")
    return f"{user}{at}{name[1:-1] if name.startswith('[') else name}"


def quote(program: Sequence[str]) -> str:
    """A command for a POSIX shell; the program takes the shell's place, so that it gets its signals."""
    first, *rest = program
    home = first.startswith("~/")
    return f"exec {'~/' if home else ''}{shlex.join([first[2:] if home else first, *rest])}"


_CAUSES: Final[tuple[tuple[str, Kind, str, str], ...]] = (
    (
        r"IDENTIFICATION HAS CHANGED|host key for .* has changed|Host key for .* has changed",
        "host key changed",
        "The key of {host} is not the one that ssh knows: it was installed anew, or another machine answers.",
        "If that is as it should be, forget the old key with `{remove}`, then accept the new one with `{line}`.",
    ),
    (
        r"Host key verification failed|host key is known for",
        "host key unknown",
        "ssh does not know the key of {host}, and may not ask whether to trust it.",
        "Run `{line}` once in a terminal and accept the key.",
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "unknown host",
        "No host is known by the name {host}.",
        "Check the name, or give it a HostName in ~/.ssh/config.",
    ),
    (
        r"Permission denied \(|Too many authentication failures|Permission denied, please",
        "permission denied",
        "{host} takes none of the keys that ssh offers.",
        (
            "ssh may not ask for a password: put a key there with `ssh-copy-id`, load yours with `ssh-add`, or name it "
            'with --ssh-args "-i KEY". `{line}` must work without a question.'
        ),
    ),
    (
        (
            r"Bad configuration option|Bad owner or permissions|[Cc]ommand-line:? line 0|terminating, \d+ bad config|"
            r"unknown option|illegal option|usage: ssh|Can't open user config|Bad port|missing argument"
        ),
        "bad options",
        "ssh refuses its options or its configuration: {said}",
        "Mend --ssh-args or ~/.ssh/config.",
    ),
    (
        r"Cannot execute command-line and remote command",
        "bad options",
        "The configuration of ssh has a RemoteCommand for {host}, so no other program can run there.",
        'Start with --ssh-args "-o RemoteCommand=none".',
    ),
    (
        r"Connection refused",
        "refused",
        "No ssh server listens where ssh looks for {host}.",
        'Start sshd there; if it has another port, name that in ~/.ssh/config or with --ssh-args "-p PORT".',
    ),
    (
        r"No route to host|[Nn]etwork is unreachable",
        "no route",
        "No network leads to {host}: {said}",
        "See whether that host is on and its network is up.",
    ),
    (
        r"timed out|not responding",
        "timed out",
        "{host} does not answer.",
        "See whether it is on and no firewall is in between.",
    ),
    (
        r"[Cc]onnection closed|[Cc]onnection reset|closed by remote host|Broken pipe|Connection to .* closed",
        "closed",
        "{host} closed the connection: {said}",
        "Its log (journalctl -u ssh) has the reason; MaxStartups and hosts.deny are frequent ones.",
    ),
)
"""The words of ssh, and their meaning. The first row that matches counts."""


def _check_args(words: Sequence[str]) -> None:
    """Raise :class:`BadRequest` for options with which ssh would run no program."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        letters = word[1:]
        if not word.startswith("-") or not letters or letters.startswith("-"):
            words_ = f"{word!r} is no option of ssh: hosts belong to --hosts, and values follow their options."
            raise BadRequest(f"--ssh-args: {words_}", option="ssh_args")
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in _REFUSED:
                raise BadRequest(
                    f"--ssh-args: ssh's option -{letter} {_REFUSED[letter]}. Leave it out.", option="ssh_args"
                )
            if letter in _WITH_VALUE:
                if not letters and not rest:
                    raise BadRequest(f"--ssh-args: the option -{letter} of ssh needs a value.", option="ssh_args")
                if not letters:
                    rest.pop(0)
                break


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing."
