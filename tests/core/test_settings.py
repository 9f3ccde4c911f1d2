"""Settings come from the environment, checked."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_dtrain import BadRequest, Settings


def test_without_variables_the_defaults_hold():
    """Others' variables do not matter."""
    assert Settings() == Settings.from_environment({"PATH": "/bin", "JUPYTER_CONFIG_DIR": "x"})


def test_every_setting_can_be_set():
    """The variable is JUPYTER_DTRAIN_ and its name in capitals; whole numbers stay whole."""
    names = [field.name for field in msgspec.structs.fields(Settings)]
    settings = Settings.from_environment({f"JUPYTER_DTRAIN_{name.upper()}": "7" for name in names})

    assert dict.fromkeys(names, 7) == msgspec.structs.asdict(settings)
    assert isinstance(settings.spool_cap, int)


def test_a_duration_may_have_a_fraction():
    """Seconds."""
    assert 0.5 == Settings.from_environment({"JUPYTER_DTRAIN_LEASE": "0.5"}).lease


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1,5", "1 h"])
def test_only_numbers_above_zero_are_accepted(text):
    """The error has the variable's name."""
    with pytest.raises(BadRequest, match="JUPYTER_DTRAIN_LEASE must be"):
        Settings.from_environment({"JUPYTER_DTRAIN_LEASE": text})


def test_a_size_is_a_whole_number():
    """Bytes have no fraction."""
    with pytest.raises(BadRequest, match=r"JUPYTER_DTRAIN_SPOOL_CAP must be a number, not '1.5'"):
        Settings.from_environment({"JUPYTER_DTRAIN_SPOOL_CAP": "1.5"})


def test_a_misspelt_setting_is_refused_with_those_that_exist():
    """Rather than ignored."""
    with pytest.raises(
        BadRequest, match=r"JUPYTER_DTRAIN_LEESE is not a setting. The settings are JUPYTER_DTRAIN_LEASE"
    ):
        Settings.from_environment({"JUPYTER_DTRAIN_LEESE": "1"})


def test_settings_survive_the_way_to_the_steward():
    """They travel as JSON."""
    settings = Settings(lease=1.5, spool_cap=10)

    assert settings == msgspec.json.decode(msgspec.json.encode(settings), type=Settings)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "5", None, True])
def test_values_given_directly_are_checked_as_well(value):
    """The error has the setting's name."""
    with pytest.raises(BadRequest, match="lease must be a number above 0"):
        Settings(lease=value)
