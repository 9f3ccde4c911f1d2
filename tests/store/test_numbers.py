"""A new world counts on where the last one of its name ended, whatever has become of the store."""

from __future__ import annotations

from jupyter_dtrain.store.file import last_number
from tests.store.conftest import drain


def test_numbers_go_on_from_the_store_and_from_the_spools_of_the_same_name(store, db, make_world, tmp_path):
    """A run that is deleted counts; one of another name does not, nor does a store that cannot be read harm."""
    for name, number in (("world", 3), ("world", 7), ("other", 50)):
        world = make_world(name=name)
        world.begin(number)
        world.finish(number)
        drain(world.writer, db)
    store.run("world/7").delete()
    spools = tmp_path / "spool"
    own = spools / "world-20260103-000000-abcdef"
    for folder, run in (
        ("world-20260101-000000-abcdef", 9),
        ("world-20260102-000000-abcdef", 12),
        ("world-2-20260102-000000-abcdef", 90),
        (own.name, 99),
    ):
        (spools / folder / f"run-{run}").mkdir(parents=True)
    (spools / "world-20260102-100000-abcdef").mkdir()

    assert last_number(store.path, tmp_path / "none" / "x", "world") == 7
    assert last_number(store.path, own, "world") == 12
    assert last_number(store.path, own, "new") == 0
    store.path.write_bytes(b"no store " * 999)
    assert last_number(store.path, own, "world") == 12
    assert last_number(tmp_path / "none", tmp_path / "none" / "x", "world") == 0
