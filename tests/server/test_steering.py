"""A page steers a loop only where it has the notebook that controls the world, and a refusal is a sentence."""

from __future__ import annotations

import os

import pytest

from tests.server.page import PATIENCE
from tests.server.test_prompts import Kernel
from tests.steward.until import until

LOOP = """
import time
import jupyter_dtrain as dtrain
lr, go = 0.1, True
while go:
    time.sleep(0.005)
    dtrain.step()
"""


@pytest.fixture(scope="module")
def session(launch):
    """A world of two ranks, driven from here."""
    return launch(n=2, name="steering")


@pytest.fixture
def running(page, session):
    """A loop of that world, and a page that knows who drives it."""
    assert page.until(lambda: (page.world("steering") or {}).get("driver"))
    run = session.run(LOOP, view=None, wait=False)
    yield run
    session.loop.between("go = False")
    assert run.wait(PATIENCE)


@pytest.mark.parametrize("kernel", ["of another notebook", ""])
def test_only_the_page_of_the_driver_s_notebook_steers(page, session, running, kernel):
    """The driver is this process, which is no kernel: no page has its notebook. Nothing is done."""
    act = {"kind": "set", "settings": [{"path": "lr", "value": "5"}]}
    status, answer = page.act(session.id, "steer", run=running.number, act=act, kernel=kernel)

    assert status == 409
    assert answer["message"] == (
        "A loop is steered by the notebook that controls the world. World 'steering' is controlled by process "
        f"{os.getpid()}; here it is read-only. %distributed attach steering --control takes control."
    )
    assert running.acts == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"act": {"kind": "explode"}}, "Invalid enum value 'explode'"),
        ({"act": {}}, "missing required field `kind`"),
        ({"act": {"kind": "step", "count": "all"}}, "Expected `int`, got `str`"),
        ({"run": None}, "Expected `int`, got `null`"),
        ({"kernel": None}, "Expected `str`, got `null`"),
    ],
)
def test_a_bad_act_is_refused_in_words(page, session, body, words):
    """No rank has heard of it."""
    until(lambda: page.world("steering"))
    status, answer = page.act(session.id, "steer", **{"run": 1, "act": {"kind": "pause"}, "kernel": "k", **body})

    assert status == 400
    assert words in answer["message"]


def test_the_page_of_the_driver_s_notebook_steers(server, page):
    """It gets what became of the act, or why it was not done, in words."""
    kernel = Kernel(server)
    try:
        kernel.run("%load_ext jupyter_dtrain\n%distributed start -n 2 --name page")
        cell = kernel.send("%%distributed" + LOOP)
        world = page.until(lambda: (now := page.world("page")).get("driver") and now.get("run") and now)
        told = {"run": world["run"]["number"], "kernel": kernel.id}

        def steer(kind, **more):
            return page.act(world["id"], "steer", act={"kind": kind, **more}, **told)

        other = page.act(world["id"], "steer", act={"kind": "pause"}, **{**told, "kernel": "of another notebook"})
        early = steer("resume")
        paused = steer("pause")
        wrong = steer("set", settings=[{"path": "opt.lr", "value": "1"}])
        ran = steer("between", code="print('lr', lr); go = False")
        resumed = steer("resume")
        reply, _ = kernel.until("execute_reply", cell)
        late = steer("pause")
    finally:
        kernel.close()

    assert other[0] == 409
    assert "A loop is steered by the notebook that controls the world." in other[1]["message"]
    assert (early[0], paused[0], ran[0], resumed[0], reply["status"]) == (409, 200, 200, 200, "ok")
    assert early[1]["message"].startswith("No loop is paused.")
    step = paused[1]["step"]
    assert paused[1]["words"].startswith(f"All ranks are paused after step {step}.")
    assert wrong[0] == 409
    assert "Ranks 0-1:" in wrong[1]["message"]
    assert (ran[1]["step"], ran[1]["ranks"]) == (step, {"0": "lr 0.1\n", "1": "lr 0.1\n"})
    assert late[0] in (400, 409)
    assert late[1]["message"]
