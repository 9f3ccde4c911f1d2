"""Settings come from the environment, checked."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_dtrain import BadRequest, Settings
from jupyter_dtrain.core.settings import FORMER


def test_without_variables_the_defaults_hold():
    """Others' variables do not matter."""
    assert Settings() == Settings.from_environment({"PATH": "/bin", "JUPYTER_CONFIG_DIR": "x"})


def test_every_setting_can_be_set():
    """The variable is JUPYTER_DTRAIN_ and its name in capitals; whole numbers stay whole."""
    names = [field.name for field in msgspec.structs.fields(Settings) if field.name not in FORMER]
    settings = Settings.from_environment({f"JUPYTER_DTRAIN_{name.upper()}": "7" for name in names})

    assert dict.fromkeys(names, 7) | dict.fromkeys(FORMER) == msgspec.structs.asdict(settings)
    assert isinstance(settings.log_cap, int)


def test_a_duration_may_have_a_fraction():
    """Seconds."""
    assert 0.5 == Settings.from_environment({"JUPYTER_DTRAIN_KEEP_ALIVE": "0.5"}).keep_alive


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1,5", "1 h"])
def test_only_numbers_above_zero_are_accepted(text):
    """The error has the variable's name."""
    with pytest.raises(BadRequest, match="JUPYTER_DTRAIN_KEEP_ALIVE must be"):
        Settings.from_environment({"JUPYTER_DTRAIN_KEEP_ALIVE": text})


def test_a_size_is_a_whole_number():
    """Bytes have no fraction."""
    with pytest.raises(BadRequest, match=r"JUPYTER_DTRAIN_LOG_CAP must be a number, not '1.5'"):
        Settings.from_environment({"JUPYTER_DTRAIN_LOG_CAP": "1.5"})


@pytest.mark.parametrize(("former", "now"), FORMER.items())
def test_a_former_name_works_and_says_the_present_one(former, now):
    """As a variable, and in Python."""
    variable = f"JUPYTER_DTRAIN_{former.upper()}"
    with pytest.warns(FutureWarning, match=f"{variable} is called JUPYTER_DTRAIN_{now.upper()} now"):
        assert getattr(Settings.from_environment({variable: "7"}), now) == 7
    with pytest.warns(DeprecationWarning, match=f"The setting {former} is called {now} now"):
        assert Settings(**{former: 7}) == Settings(**{now: 7})
    with pytest.warns(DeprecationWarning, match="is called") as told:
        assert getattr(Settings(**{former: 7, now: 8}), now) == 8, "the present name wins"
    assert told[0].filename == __file__, "the line that has the name"
    with pytest.raises(BadRequest, match=f"{former} must be a number above 0"):
        Settings(**{former: 0})


def test_a_misspelt_setting_is_refused_with_those_that_exist():
    """Rather than ignored."""
    with pytest.raises(
        BadRequest, match=r"JUPYTER_DTRAIN_LEESE is not a setting. The settings are JUPYTER_DTRAIN_KEEP_ALIVE"
    ):
        Settings.from_environment({"JUPYTER_DTRAIN_LEESE": "1"})


def test_settings_survive_the_way_to_the_steward():
    """They travel as JSON."""
    settings = Settings(keep_alive=1.5, log_cap=10)

    assert settings == msgspec.json.decode(msgspec.json.encode(settings), type=Settings)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "5", None, True])
def test_values_given_directly_are_checked_as_well(value):
    """The error has the setting's name."""
    with pytest.raises(BadRequest, match="keep_alive must be a number above 0"):
        Settings(keep_alive=value)
