"""Widgets that ranks have made, through a kernel as a front end sees it."""

from __future__ import annotations

import pytest

pytest.importorskip("ipywidgets")

MAKE = """%%distributed
import os, ipywidgets
rank = int(os.environ["RANK"])
slider = ipywidgets.IntSlider(10 * rank, description=f"of rank {rank}")
doubled = ipywidgets.Label("nothing")
slider.observe(lambda change: setattr(doubled, "value", str(2 * change["new"])), "value")
display(slider)
"""


@pytest.fixture(scope="module")
def world(notebook):
    """The notebook with a world of two ranks."""
    notebook.ok("%distributed start -n 2")
    yield notebook
    notebook.ok("%distributed stop")


@pytest.fixture(scope="module")
def made(world):
    """The cell that made a slider on each rank."""
    return world.ok(MAKE)


def models(cell, name):
    """The ids of the models that were opened, by the rank that made them; two ranks make the same in turn."""
    opened = [content for content in cell.of("comm_open") if content["data"]["state"].get("_model_name") == name]
    if name == "IntSliderModel":
        return {content["data"]["state"]["value"] // 10: content["comm_id"] for content in opened}
    return [content["comm_id"] for content in opened]


def drag(notebook, comm_id, value):
    """Send the message of a front end whose slider moves."""
    content = {"comm_id": comm_id, "data": {"method": "update", "state": {"value": value}, "buffer_paths": []}}
    notebook.client.session.send(notebook.client.shell_channel.socket, "comm_msg", content)


def told(cell, value):
    """Whether a label in the front end has this text."""
    return any(content["data"].get("state", {}).get("value") == value for content in cell.of("comm_msg"))


def test_a_widget_of_a_rank_is_a_widget_of_the_cell(made):
    """Its models are opened as this kernel's own, and the display says whose it is."""
    sliders = models(made, "IntSliderModel")
    shown = {
        display["metadata"]["dtrain"]["rank"]: display["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
        for display in made.displays
        if "application/vnd.jupyter.widget-view+json" in display["data"] and "dtrain" in display["metadata"]
    }

    assert sorted(sliders) == [0, 1]
    assert shown == sliders
    assert len(models(made, "LabelModel")) == 2


def test_a_moved_slider_moves_on_its_rank_and_what_follows_comes_back(world, made):
    """Its callback runs there, and what that changes is changed in the browser."""
    drag(world, models(made, "IntSliderModel")[1], 21)
    made.wait_for(lambda cell: told(cell, "42"))
    world.ok("%%distributed --pull here\nhere = slider.value")

    assert world.value("here") == {0: 0, 1: 21}


def test_a_change_by_a_cell_reaches_the_browser(world, made):
    """The message belongs to the cell that made the widget, as in any notebook."""
    cell = world.ok("%%rank 0\nslider.value = 7")
    sliders = models(made, "IntSliderModel")
    messages = [message for message in cell.of("comm_msg") if message["comm_id"] == sliders[0]]

    assert [message["data"]["state"]["value"] for message in messages] == [7]
    assert told(cell, "14")


def test_a_busy_rank_answers_when_it_is_idle_and_a_note_says_so(world, made, tmp_path):
    """The last of many moves counts; the other rank answers at once."""
    world.ok(
        f"%%rank 1 --no-wait\nimport pathlib, time\nprint('begun', flush=True)\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.02)"
    )
    sliders = models(made, "IntSliderModel")
    for value in (31, 32, 33):
        drag(world, sliders[1], value)
    drag(world, sliders[0], 4)
    made.wait_for(lambda cell: told(cell, "8"))
    made.wait_for(lambda cell: any("Rank 1 is busy" in text for text in cell.display_texts))
    early = told(made, "66")
    (tmp_path / "go").touch()
    made.wait_for(lambda cell: told(cell, "66"))

    assert not early
    assert not told(made, "62")
    made.wait_for(lambda cell: not any("is busy" in text for text in cell.display_texts))


def test_a_callback_that_fails_says_so_in_the_next_cell(world):
    """The rank goes on."""
    cell = world.ok("%%rank 0\nbutton = ipywidgets.Button()\nbutton.on_click(lambda _: 1 / 0)\ndisplay(button)")
    content = {"comm_id": models(cell, "ButtonModel")[0], "data": {"method": "custom", "content": {"event": "click"}}}
    world.client.session.send(world.client.shell_channel.socket, "comm_msg", content)
    world.ok("1")
    after = world.ok("%%rank 0\nprint('alive')")

    assert "alive" in after.out
    assert "ZeroDivisionError" in after.err


def test_a_closed_widget_is_closed_in_the_browser(world):
    """The notebook keeps nothing of it."""
    cell = world.ok("%%rank 1\nlabel = ipywidgets.Label('x')\ndisplay(label)\nlabel.close()")
    closed = [content["comm_id"] for content in cell.of("comm_close")]

    assert models(cell, "LabelModel")[0] in closed


def test_an_image_travels_as_bytes(world):
    """Binary state is not text."""
    cell = world.ok("%%rank 0\nimage = ipywidgets.Image(value=bytes(range(256)))\ndisplay(image)")
    opened = [
        m
        for m in cell.messages
        if m["msg_type"] == "comm_open" and m["content"]["data"]["state"].get("_model_name") == "ImageModel"
    ]

    assert [bytes(buffer) for buffer in opened[0]["buffers"]] == [bytes(range(256))]
