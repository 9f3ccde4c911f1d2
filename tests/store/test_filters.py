"""What a person may write to find runs, and what a filter that cannot be read says."""

from __future__ import annotations

import time

import pytest

from jupyter_dtrain.core.errors import BadRequest
from jupyter_dtrain.store.filters import (
    LONGEST,
    BadFilter,
    compiled,
    fits,
    looked,
    moment_in,
    number_in,
    parse,
    quote,
    seconds_in,
    together,
)


def read(text):
    """The conditions of a filter as tuples of name, operator, values, and whether they are negated."""
    return [(one.name, one.operator, one.values, one.negated) for one in parse(text)]


def test_conditions_are_names_operators_and_values():
    """Longer operators count as a whole; bare words are text; a dash in front negates."""
    assert read('lr>1e-3 world:cnn loss<=0.5 name~^cnn "two words" -word -tag:old') == [
        ("lr", ">", ("1e-3",), False),
        ("world", ":", ("cnn",), False),
        ("loss", "<=", ("0.5",), False),
        ("name", "~", ("^cnn",), False),
        ("", ":", ("two words",), False),
        ("", ":", ("word",), True),
        ("tag", ":", ("old",), True),
    ]
    assert read("a!=1 b!~x c>=2 d=a|b e:*") == [
        ("a", "!=", ("1",), False),
        ("b", "!~", ("x",), False),
        ("c", ">=", ("2",), False),
        ("d", "=", ("a", "b"), False),
        ("e", "", (), False),
    ]
    assert read("") == read("  \n ") == []


def test_names_and_values_in_quotes_may_have_any_character():
    """A prefix says where a name is looked for."""
    assert read('"my lr">3 "loss (backward).min"<0.1') == [
        ("my lr", ">", ("3",), False),
        ("loss (backward).min", "<", ("0.1",), False),
    ]
    assert read(r'note:"a \"b\" | c"') == [("note", ":", ('a "b" | c',), False)]
    assert [(one.name, one.origin) for one in parse('config:loss=mse metric:"a b"<1 config:lr')] == [
        ("loss", "config"),
        ("a b", "metric"),
        ("lr", "config"),
    ]
    for text in ('a "b" \\', "'", "x" * 1000, "<script>alert(1)</script>", "'; DROP TABLE runs; --", "-x", "é\n"):
        (one,) = parse(quote(text))
        assert (one.name, one.values, one.negated) == ("", (text,), False)
    assert read("it's -") == [("", ":", ("it's",), False), ("", ":", ("-",), False)]


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("lr>", 3, "A value is missing after lr>"),
        ("tag:a >3", 6, "A name is missing before '>'"),
        ("a:b lr> ", 7, "A value is missing"),
        ('name:"abc', 5, "has no second one"),
        ('"abc', 0, "has no second one"),
        ("config:>3", 7, "A name is missing after 'config'"),
        ("lr:a|", 3, "A value is missing beside '|'"),
        ("a:b name~(", 9, "is no regular expression"),
        ("name~(a+)+$", 5, "repeat single characters and sets only"),
        ("name~a*b*c*", 5, "may have 2 repetitions"),
        (r"name~(a)\1", 5, "no back references"),
        ("name~(?=a)b", 5, "no back references, look-around or flags"),
        ("a " * 101, 202, "may have 100 conditions"),
        ("x" * (LONGEST + 1), 0, "may have 4,000 characters"),
    ],
)
def test_what_cannot_be_read_says_where(text, position, words):
    """The message counts characters from 1, a program from 0."""
    with pytest.raises(BadFilter, match=r"filter|conditions") as caught:
        parse(text)

    assert words in str(caught.value)
    assert caught.value.position == pytest.approx(position, abs=0 if len(text) < 100 else 2)
    assert caught.value.option == "where"
    if len(text) < 100:
        assert f"At character {position + 1} " in str(caught.value)


def test_wildcards_take_time_that_grows_with_the_text_alone():
    """No pattern makes them try for ever."""
    assert fits("cnn*", "CNN-3")
    assert fits("*b*d", "abcd")
    assert not fits("a*a", "a")
    assert fits("", "")
    assert not fits("", "a")
    assert not fits("a*b*" * 500 + "c", "ab" * 5000)


def test_regular_expressions_are_bounded():
    """The worst that is allowed ends."""
    pattern = compiled("a*a*b")
    begun = time.process_time()
    assert pattern.search(looked("a" * 10_000)) is None
    assert time.process_time() - begun < 10
    for wrong in ("[", "(a|b)*", "(?i)a", "a" * 201, "*"):
        with pytest.raises(BadRequest):
            compiled(wrong)
    assert compiled("^(cnn|mlp)-[0-9]+$").search("MLP-12")


def test_numbers_durations_and_dates():
    assert [number_in(text) for text in ("1e-3", "-2", "inf", "nan", "x", "")] == [
        0.001,
        -2,
        float("inf"),
        None,
        None,
        None,
    ]
    assert [seconds_in(text) for text in ("90", "1.5m", "2H", "7d", "3 h", "x", "5 parsecs")] == [
        90,
        90,
        7200,
        604800,
        10800,
        None,
        None,
    ]
    assert moment_in("2026-11-30T10:30") - moment_in("2026-11-30") == 10.5 * 3600
    assert moment_in("30.11.2026") is None


def test_older_options_become_a_filter():
    assert together() == ""
    assert together("lr>1", search="a b", world='x"y', outcome=None) == r'lr>1 world="x\"y" "a" "b"'
