"""Prompts of ranks for pages: what the stream tells of them, and who may answer."""

from __future__ import annotations

import json
import os
import urllib.request
import uuid

import pytest
import websocket

from tests.server.page import PATIENCE, Page, Server
from tests.steward.until import until

RANK = "import os; rank = int(os.environ['RANK'])\n"


@pytest.fixture(scope="module")
def session(launch):
    """A world of three ranks, driven from here."""
    return launch(n=3, name="asking")


@pytest.fixture
def watching(page, session):
    """A page that looks closely at that world."""
    assert page.until(lambda: page.world("asking"))
    page.say(watch=[session.id])
    assert page.until(lambda: page.last("ranks"))
    return page


def ask(session, code, ranks=None):
    """Begin a cell whose questions are answered from outside."""
    return session.run(RANK + code, ranks, view=None, wait=False, ask=True)


def status_of(page, run):
    """The newest status of a run that the stream has told."""
    for _, _, message in reversed(page.messages):
        if message["type"] == "news" and message["status"]["run"] == run.number:
            return message["status"]
        if message["type"] == "run" and message["document"]["run"] == run.number:
            return message["document"]
    return {}


def test_pages_learn_who_asks_and_who_waits(watching, session):
    """The item of attention is there as long as the prompt is."""
    run = ask(session, "from mpi4py import MPI\nif rank == 1: input('name? ')\nMPI.COMM_WORLD.barrier()")
    status = watching.until(lambda: (now := status_of(watching, run)).get("prompts") and now)
    (item,) = watching.until(lambda: watching.items("asks"))
    watching.until(lambda: "wait for it" in status_of(watching, run).get("asked", ""))
    told = status_of(watching, run)["asked"]
    session.answer("Ada")
    assert run.wait(PATIENCE)

    (prompt,) = status["prompts"]
    assert (prompt["ranks"], prompt["numbers"], prompt["kind"], prompt["text"]) == ([1], [1], "input", "name? ")
    assert told.startswith("Rank 1 is at a prompt (")
    assert told.endswith(", line 3); ranks 0,2 wait for it.")
    assert (item["level"], item["run"]) == ("info", run.number)
    assert item["words"].startswith(f"Run {run.number}: rank 1 is at a prompt (")
    watching.until(lambda: not watching.items("asks"))
    watching.until(lambda: not status_of(watching, run).get("asked"))


@pytest.mark.parametrize("kernel", ["of another notebook", ""])
def test_only_the_page_of_the_driver_s_notebook_answers(watching, session, kernel):
    """The driver is this process, which is no kernel: no page has its notebook."""
    run = ask(session, "print(input('mine? '))", "0")
    until(lambda: 0 in session.prompts)
    watching.until(lambda: watching.world("asking").get("driver"))
    status, answer = watching.act(session.id, "answer", run=run.number, prompts={"0": 1}, text="no", kernel=kernel)
    asks = 0 in session.prompts
    session.answer("yes")
    assert run.wait(PATIENCE)

    assert status == 409
    assert answer["message"] == (
        "Prompts are answered in the notebook that controls the world. World 'asking' is controlled by process "
        f"{os.getpid()}; here it is read-only. %distributed attach asking --control takes control."
    )
    assert asks
    assert run.text(0) == "yes\n"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompts": {}}, "Name the prompts to answer"),
        ({"text": "one\ntwo"}, "An answer is one line"),
        ({"text": "end\n"}, "An answer is one line"),
        ({"text": "x" * 200_000}, "at most 100,000 characters"),
        ({"text": 3}, "Expected `str | null`, got `int`"),
        ({"prompts": {"0": "one"}}, "Expected `int`, got `str`"),
        ({"kernel": None}, "Expected `str`, got `null`"),
    ],
)
def test_a_bad_answer_is_refused_in_words(watching, session, body, words):
    """What was typed is in none of them."""
    whole = {"run": 1, "prompts": {"0": 1}, "text": "SECRET", "kernel": "k", **body}
    status, answer = watching.act(session.id, "answer", **whole)

    assert status == 400
    assert words in answer["message"]
    assert "SECRET" not in answer["message"]


class Kernel:
    """A notebook's kernel of the server, and its page's connection to it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.id = self._api("POST", "kernels")["id"]
        self._socket = websocket.create_connection(
            f"ws://127.0.0.1:{server.port}/api/kernels/{self.id}/channels",
            header=[f"Authorization: token {server.token}"],
            timeout=PATIENCE,
        )

    def _api(self, method, path):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._server.port}/api/{path}",
            method=method,
            data=b"{}" if method == "POST" else None,
            headers={"Authorization": f"token {self._server.token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 — http
            return json.loads(answer.read() or b"null")

    def send(self, code):
        """Begin a cell that may ask; its id."""
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "username": "", "session": "s", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        self._socket.send(json.dumps(message))
        return number

    def until(self, kind, parent):
        """The next message of this kind about a cell, and the text that came before it."""
        said = ""
        while True:
            if isinstance(text := self._socket.recv(), (bytes, memoryview)):
                continue  # a widget's, with buffers
            message = json.loads(text)
            if message["parent_header"].get("msg_id") != parent:
                continue
            if message["msg_type"] == "stream":
                said += message["content"]["text"]
            if message["msg_type"] == kind:
                return message["content"], said

    def run(self, code):
        """Run a cell to its end; what it has printed."""
        return self.until("execute_reply", self.send(code))[1]

    def close(self):
        """End it, and its world."""
        self._socket.close()
        self._api("DELETE", f"kernels/{self.id}")


def test_the_page_of_the_driver_s_notebook_answers(server, open_page):
    """A second answer to the same prompt changes nothing."""
    page: Page = open_page()
    kernel = Kernel(server)
    try:
        kernel.run("%load_ext jupyter_dtrain\n%distributed start -n 2 --name page")
        cell = kernel.send("%%distributed -r 0\nprint(input('name? '), input('again? '))")
        asked, _ = kernel.until("input_request", cell)
        world = page.until(lambda: (now := page.world("page")).get("driver") and now.get("run") and now)
        told = {"run": world["run"]["number"], "kernel": kernel.id}
        answers = [page.act(world["id"], "answer", prompts={"0": 1}, text=text, **told) for text in ("Ada", "late")]
        again, _ = kernel.until("input_request", cell)
        answers.append(page.act(world["id"], "answer", prompts={"0": 2}, text="Grace", **told))
        reply, said = kernel.until("execute_reply", cell)
    finally:
        kernel.close()

    assert world["driver"]["kernel"] == kernel.id
    assert (asked["prompt"], again["prompt"]) == ("rank 0: name? ", "rank 0: again? ")
    assert answers == [(202, {})] * 3
    assert (reply["status"], said) == ("ok", "[0] Ada Grace\n")
