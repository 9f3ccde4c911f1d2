"""Secrets in text and in values that are stored or shown: found by their form and by their name, and left out.

Everybody who stores or sends text from outside asks here: configurations, commands, addresses of remotes, differences
of code. It finds what is commonly a secret, not every one: who writes a password as ``x = "blue"`` is not helped.
Variables of the environment are never stored; a value that is one of them, and a secret by its name, is found as well.

Under failure: nothing here raises, whatever the text; the time grows with its length alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

REDACTED: Final = "[redacted]"
"""Stands for a secret."""

_FORMS: Final = re.compile(
    r"""(?xs)
    -----BEGIN[ ][A-Z0-9 ]*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----.*?(?:-----END[ ][A-Z0-9 ]*PRIVATE[ ]KEY(?:[ ]BLOCK)?-----|\Z)
    | (?<![A-Za-z0-9])(?:
        (?:AKIA|ASIA)[0-9A-Z]{16}
      | sk-[A-Za-z0-9_-]{8,}                      # OpenAI, Anthropic and others
      | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}
      | hf_[A-Za-z0-9]{16,}
      | gh[oprsu]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,} | glpat-[A-Za-z0-9_-]{16,}
      | xox[a-z]-[A-Za-z0-9-]{8,} | xapp-[A-Za-z0-9-]{8,}
      | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_-]{16,}
      | wandb_v1_[A-Za-z0-9_]{16,} | gsk_[A-Za-z0-9]{20,} | r8_[A-Za-z0-9]{20,} | nvapi-[A-Za-z0-9_-]{20,}
      | npm_[A-Za-z0-9]{30,} | pypi-[A-Za-z0-9_-]{40,} | dop_v1_[a-f0-9]{40,}
      | SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*      # a JSON web token
    )
    | (?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{8,}
    """
)
_HINTS: Final = (
    *("pass", "pwd", "credential", "key", "secret", "auth", "bearer", "basic", "jwt", "token", "://", "-----begin"),
    *("akia", "asia", "sk-", "sk_", "rk_", "pk_", "hf_", "gh", "glpat-", "xox", "xapp-", "aiza", "ya29", "wandb_v1_"),
    *("r8_", "nvapi-", "npm_", "pypi-", "dop_v1_", "sg.", "eyj", "hooks.slack"),
)
"""One of them is in each text that has a secret, in small letters: most texts need no closer look."""
_ADDRESS: Final = re.compile(r"(?<=://)(?:([^\s/:@\"'<>]{0,200}):[^\s/@\"'<>]{1,1000}|[^\s/:@\"'<>]{16,1000})(?=@)")
_HEADER: Final = re.compile(r"(?i)\b(Bearer|Basic)(\s{1,4})[A-Za-z0-9._~+/=-]{12,}")
_OPTION: Final = re.compile(r"(?<!\S)(--?)([A-Za-z][\w-]*)([ \t]+)([^\s-]\S*)")
_NAMED: Final = re.compile(
    r"""(?x)
    (?<![\w.-]) (?!\d[\d.]*[\s,]) (?P<name>[\w.-]+) (?P<quote>["']?) \]?
    (?P<sign> \s{0,8}(?: :[ ]?[A-Za-z_][\w.\[\]|,\ ]{0,60}?\s{0,4}=(?!=) | ={1,2}>? | :=? | , ) \s{0,8})
    """
)
_LITERAL: Final = re.compile(
    r"""(?x) [rRbBuUfF]{0,2}(?P<mark>\"\"\"|\'\'\'|["']) (?P<text>(?:(?!(?P=mark))(?:\\.|[^\\\n]))*)"""
)
_BARE: Final = re.compile(r"[^\s\"'`,;(){}\[\]&<>]+")
_LINE: Final = re.compile(r"[+ -]?(?:export )?")
"""What stands before a name in a file of settings, or in a difference of one."""
_KEY: Final = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9_+/=-]{32,}")
"""The text of a key, where its name is just that."""
_PATH: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\.?")
_NUMBER: Final = re.compile(r"[0-9.eE+-]{1,5}")
_NOTHING: Final = frozenset(
    {"None", "True", "False", "null", "true", "false", "...", "self", "os.environ", "os.getenv"}
)
_TYPES: Final = frozenset({"str", "bytes", "int", "float", "bool", "object", "list", "dict", "tuple", "set", "type"})

_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ANYWHERE: Final = re.compile(r"password|passwd|passphrase|credential|apikey|secretkey|accesskey|privatekey")
_ALONE: Final = frozenset({"secret", "secrets", "pwd", "auth", "authorization", "bearer", "jwt"})
_OF_KEYS: Final = frozenset(
    (
        *("api", "access", "private", "auth", "encryption", "signing", "account", "storage", "ssh", "deploy"),
        *("service", "shared", "subscription", "license", "hmac", "wandb", "openai", "anthropic", "hf"),
        *("huggingface", "aws", "azure", "gcp", "comet", "neptune", "github", "gitlab"),
    )
)
"""Words before ``key`` that make it one that opens something."""
_OF_TEXT: Final = frozenset(
    (
        *("pad", "padding", "eos", "bos", "sos", "eot", "boi", "eoi", "unk", "mask", "cls", "sep", "image"),
        *("audio", "video", "vision", "text", "prompt", "special", "additional", "start", "end", "begin"),
        *("stop", "new", "next", "prev", "last", "first", "max", "min", "num", "per", "each", "decoder"),
        *("encoder", "forced", "class", "dist", "query", "memory", "mem", "register", "summary", "think"),
        *("tool", "input", "output", "word", "sub", "char", "time", "ignore", "target", "source", "label"),
    )
)
"""Words before ``token`` that make it a piece of text."""
_FILES: Final = (
    *(
        ".env",
        ".env.*",
        "*.env",
        ".envrc",
        "*.pem",
        "*.key",
        "*.p12",
        "*.pfx",
        "*.keystore",
        "*.jks",
        "*.ppk",
        "*.kdbx",
    ),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *(".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".htpasswd", ".git-credentials", ".dockercfg"),
    *("credentials", "credentials.*", "*credentials*.json", "service-account*.json"),
    *("secrets", "secrets.json", "secrets.toml", "secrets.yml", "secrets.yaml", "secrets.ini", "*.secrets"),
)
_NEAR: Final = 256
"""Characters behind a name in which it is judged whether its value is a secret."""
_BEFORE: Final = 9
"""Characters that may stand before a name in a line, and the end of the line before."""
_SHORTEST: Final = 6
"""Characters of a variable of the environment that is looked for; shorter ones are in much text."""


def redact(text: str, known: Collection[str] = (), *, named: bool = True) -> str:
    """``text`` with :data:`REDACTED` for each secret.

    Those are keys of well-known forms, what is assigned to a name such as ``password``, passwords in addresses, and the
    texts of ``known``, see :func:`environment_secrets`. The number of lines stays. Without ``named``, what stands
    behind a name stays as it is: in text that is no code, ``token: cat`` is none.
    """
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, REDACTED + "\n" * secret.count("\n"))
    lower = text.lower()
    if not any(hint in lower for hint in _HINTS):
        return text
    text = _FORMS.sub(lambda found: REDACTED + "\n" * found[0].count("\n"), text)
    text = _ADDRESS.sub(lambda found: REDACTED if found[1] is None else f"{found[1]}:{REDACTED}", text)
    text = _HEADER.sub(lambda found: f"{found[1]}{found[2]}{REDACTED}", text)
    if not named:
        return text
    text = _OPTION.sub(
        lambda found: f"{found[1]}{found[2]}{found[3]}{REDACTED}" if is_secret_name(found[2]) else found[0], text
    )
    return _redact_named(text)


def redact_value(name: str, value: Any, known: Collection[str] = ()) -> Any:
    """``value``, JSON, without secrets: all of it where ``name`` is a secret's, else its texts, at any depth."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name):
        return REDACTED
    if isinstance(value, str):
        if name.lower() == "key" and _KEY.fullmatch(value):
            return REDACTED
        return redact(value, known)
    if isinstance(value, dict):
        return {redact(str(key), known): redact_value(str(key), one, known) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_value("", one, known) for one in value]
    return value


def redact_command(words: Sequence[str], known: Collection[str] = ()) -> list[str]:
    """A command's words without secrets, also where an option and its value are two words."""
    found: list[str] = []
    hidden = False
    for word in words:
        found.append(REDACTED if hidden and not word.startswith("-") else redact(word, known))
        hidden = word.startswith("-") and "=" not in word and is_secret_name(word.lstrip("-"))
    return found


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is a secret, such as ``api_key`` or ``hub_token``, and not ``pad_token``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if _ANYWHERE.search("".join(words)) or not _ALONE.isdisjoint(words):
        return True
    for before, word in zip(["", *words], words, strict=False):
        if word == "key" and before in _OF_KEYS:
            return True
    if "token" not in words:
        return False
    at = words.index("token")
    after = words[at + 1 :]
    plain = at > 0 and words[at - 1] in _OF_TEXT
    return not plain and (not after or after[0] in {"value", "secret", "str", "string", "key", "text"})


def is_secret_file(path: str) -> bool:
    """Whether a file of this name commonly holds secrets, such as ``.env`` or ``id_rsa``."""
    name = path.replace("\\", "/").rpartition("/")[2].lower()
    return any(fnmatchcase(name, pattern) for pattern in _FILES)


def environment_secrets(environ: Iterable[tuple[str, str]] | None = None) -> frozenset[str]:
    """The values of this process' environment that are secrets by their names, for :func:`redact`."""
    pairs = os.environ.items() if environ is None else environ
    named = [value for name, value in pairs if len(value) >= _SHORTEST and is_secret_name(name)]
    # Paths have such names as well: PWD, SSH_AUTH_SOCK, GOOGLE_APPLICATION_CREDENTIALS.
    return frozenset(value for value in named if not (value[0] == "/" and os.path.lexists(value)))


def _redact_named(text: str) -> str:
    """What stands behind names: code (``password = "…"``), files of settings (``PASSWORD=…``), JSON, YAML."""
    parts: list[str] = []
    done = at = 0
    while (found := _NAMED.search(text, at)) is not None:
        # What is no secret's name may stand before one that is: "config: password=…".
        at = found.end("name")
        secret = is_secret_name(found["name"])
        if not (secret or _last(found["name"]) == "key") or (found["sign"].strip() == "," and not found["quote"]):
            continue
        start, end = _value(text, found, len(text) if secret else min(len(text), found.end() + _NEAR))
        if end > start and (secret or _KEY.fullmatch(text, start, end)):
            parts += [text[done:start], REDACTED]
            done = at = end
    return "".join([*parts, text[done:]])


def _value(text: str, found: re.Match[str], last: int) -> tuple[int, int]:
    """Where the value stands that is given to a name; nothing where that is code that only names one.

    It is looked for up to ``last``: one text may have the same name a million times.
    """
    at, sign = found.end(), found["sign"]
    if (literal := _LITERAL.match(text, at, last)) is not None:
        return literal.span("text")
    if sign == "=" and _begins_line(text, found.start("name")):
        stop = text.find("\n", at, last)
        rest = text[at : last if stop < 0 else stop].rstrip()
        return (at, at) if rest in _NOTHING or rest[:1] in {"$", "%", "["} else (at, at + len(rest))
    bare = _BARE.match(text, at, min(last, at + _NEAR))
    if bare is None or sign.strip() == "," or text[bare.end() : bare.end() + 1] in {"(", "["}:
        return at, at
    value = bare[0]
    if value in _NOTHING or value in _TYPES or value[0] in "$%@*\\" or _NUMBER.fullmatch(value):
        return at, at
    if _PATH.fullmatch(value):
        # Code, or a word: "token = next_token", "token: Tensor"; "password: hunter2", "password=hunter2".
        named = "." in value or value[0].isupper() or _last(found["name"]) in value.lower()
        if named or sign[:1].isspace():
            return at, at
    return (_BARE.match(text, at, last) or bare).span()


def _begins_line(text: str, at: int) -> bool:
    """Whether a name at ``at`` begins a line of a file of settings, or of a difference of one."""
    first = max(0, at - _BEFORE)
    line = text.rfind("\n", first, at) + 1
    return (line > 0 or first == 0) and _LINE.fullmatch(text, line, at) is not None


def _last(name: str) -> str:
    words = _WORDS.findall(name)
    return words[-1].lower() if words else ""
