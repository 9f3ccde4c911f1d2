"""The codes of manifests: those of earlier versions stay good, and no fact of a newer one can be changed."""

from __future__ import annotations

import msgspec
import pytest

from jupyter_dtrain.core.snapshots import Manifest, is_ours, signed

KEY = b"k" * 32
EARLIER = (
    b'{"name":"one","saved":1.5,"world":"world","size":2,"held":{"b":"value","a":"state"},"step":7,'
    b'"files":{"f":{"size":3,"code":"aa"}},"version":1,'
    b'"code":"9e209e9271c18d0298fa3f9cf7d92161037071d4e5e5011c2e392f16011ba821"}'
)
"""As version 0.1 has written it, before manifests named a run."""


def test_a_manifest_of_an_earlier_version_is_ours_and_so_is_one_that_names_a_run():
    """Also after the way through its file."""
    earlier = msgspec.json.decode(EARLIER, type=Manifest)
    named = signed(KEY, msgspec.structs.replace(earlier, run=3, next_step=40))

    assert is_ours(KEY, earlier)
    assert is_ours(KEY, msgspec.json.decode(msgspec.json.encode(named), type=Manifest))


@pytest.mark.parametrize("change", [{"run": 4}, {"next_step": 41}, {"run": 0}, {"name": "two"}, {"version": 0}])
def test_a_manifest_that_was_changed_is_not_ours(change):
    """Whichever fact it is."""
    earlier = msgspec.json.decode(EARLIER, type=Manifest)
    named = signed(KEY, msgspec.structs.replace(earlier, run=3, next_step=40))

    assert not is_ours(KEY, msgspec.structs.replace(named, **change))
