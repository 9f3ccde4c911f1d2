"""Values become JSON without anybody's code, and names one short line."""

from __future__ import annotations

import argparse
import enum
import math
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from jupyter_dtrain.core.configuration import LONGEST, MAX_NAME, clean_name, plain, stored
from jupyter_dtrain.core.environment import packages, read_environment
from jupyter_dtrain.core.secrets import REDACTED


class Kind(str, enum.Enum):
    FAST = "fast"


class Loud(float):
    """A number whose conversions are the user's."""

    def __float__(self) -> float:
        raise AssertionError("nobody's code is run")

    __repr__ = __str__ = __float__  # type: ignore[assignment]


@dataclass
class Options:
    lr: float = 0.1
    sizes: tuple[int, ...] = (1, 2)
    deep: dict[str, int] = field(default_factory=lambda: {"a": 1})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (1, 1),
        (True, True),
        (None, None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1 << 70, hex(1 << 70)),
        (Kind.FAST, "fast"),
        (Path("/a/b"), "/a/b"),
        ((1, [2]), [1, [2]]),
        ({2, 1}, [1, 2]),
        ({1: "a"}, {"1": "a"}),
        ("a\ud800", "a?"),
        (Options(), {"lr": 0.1, "sizes": [1, 2], "deep": {"a": 1}}),
        (argparse.Namespace(lr=1), {"lr": 1}),
    ],
)
def test_a_value_becomes_plain(value, told):
    """What it is built of counts, and JSON takes the result."""
    assert plain(value) == told
    assert type(plain(value)) is type(told)
    assert msgspec.json.decode(msgspec.json.encode(plain(value))) == told


def test_nobodys_code_is_run():
    """A number that converts itself is read as what it is built of."""
    assert plain([Loud(2.5)]) == [2.5]


@pytest.mark.parametrize("value", [object(), int, len, np.zeros(3), b"x", [object()], range(3)])
def test_what_no_value_stands_for_is_refused(value):
    """With the reason."""
    with pytest.raises(ValueError, match="is no number"):
        plain(value)


def test_endless_and_long_values_are_refused():
    """They would not fit."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="containers in each other"):
        plain(endless)
    with pytest.raises(ValueError, match=r"a number of .* bits"):
        plain(1 << (LONGEST * 9))
    with pytest.raises(ValueError, match="longer than 8 kB"):
        stored("text", "x" * (LONGEST + 1))


def test_secrets_are_not_stored():
    """By their names, and by their form."""
    assert stored("api_key", "blue") == REDACTED
    assert stored("model", {"hub_token": "blue", "name": "sk-0123456789abcdef"}) == {
        "hub_token": REDACTED,
        "name": REDACTED,
    }


def test_a_key_that_has_no_text_is_called_by_its_type():
    """It raises nothing."""

    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    assert clean_name(Mute()) == "Mute"


def test_names_are_cut_and_stay_different():
    """Of 10,000 characters as well."""
    names = {clean_name("n" * 10_000 + end) for end in "ab"}

    assert len(names) == 2
    assert max(map(len, names)) <= MAX_NAME
    assert clean_name(" a\n b ") == "a b"


def test_the_environment_names_packages_and_no_variables(monkeypatch):
    """And a secret of a script's command is left out."""
    monkeypatch.setenv("OF_THE_ENVIRONMENT", "quite-a-value")
    found = read_environment(["A device"], ["train.py", "--api-key", "horse"])

    assert found.packages["numpy"] == np.__version__
    assert found.packages["msgspec"] == msgspec.__version__
    assert not any(name.startswith("_") for name in found.packages)
    assert found.command == ["train.py", "--api-key", REDACTED]
    assert found.devices == ["A device"]
    assert min(found.cpus, found.memory) > 0
    assert found.folder == str(Path.cwd())
    assert "quite-a-value" not in str(found)
    assert "os" not in packages()
