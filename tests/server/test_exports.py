"""A page makes a job of a notebook."""

from __future__ import annotations

import json

import pytest
from tornado.httpclient import HTTPClientError

from tests.jobs.cells import file_of


@pytest.fixture
def jp_server_config(jp_server_config):
    """A server with our extension."""
    return {**jp_server_config, "ServerApp": {"jpserver_extensions": {"jupyter_dtrain.server": True}}}


async def ask(jp_fetch, **body):
    answer = await jp_fetch("dtrain", "export", method="POST", body=json.dumps(body))
    return json.loads(answer.body)


async def test_a_page_gets_the_places_and_a_job_beside_the_notebook(jp_fetch, jp_root_dir):
    file_of(jp_root_dir, "%%distributed -n 2\nlr = 0.1\nprint(lr)", name="les son")
    targets = json.loads((await jp_fetch("dtrain", "export")).body)["targets"]
    made = await ask(jp_fetch, notebook="les son.ipynb", target="slurm", ranks=4, settings={"time": "2:00:00"})

    assert [one["name"] for one in targets][:4] == ["script", "torchrun", "mpi", "slurm"]
    assert made["file"] == "les son.sbatch"
    assert "1 cell for slurm." in made["words"]
    batch = (jp_root_dir / "les son.sbatch").read_text()
    assert "#SBATCH --time=2:00:00\n" in batch
    assert "#SBATCH --ntasks-per-node=4\n" in batch
    assert "--lr" in (jp_root_dir / "les son.py").read_text()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"target": "slurm", "notebook": "none.ipynb"}, "There is no notebook 'none.ipynb'", id="no file"),
        pytest.param({"target": "moon", "notebook": "lesson.ipynb"}, "There is no target 'moon'", id="no target"),
        pytest.param(
            {"notebook": "../lesson.ipynb", "target": "mpi"}, "is not below the server's folder", id="outside"
        ),
        pytest.param(
            {"notebook": "lesson.ipynb", "target": "mpi", "file": "../../x.sh"}, "is not below", id="a file outside"
        ),
        pytest.param({"notebook": "lesson.ipynb", "target": "mpi", "ranks": -1}, "-n", id="ranks"),
        pytest.param({"notebook": "lesson.ipynb", "target": "mpi", "settings": {"x": "1"}}, "no setting 'x'", id="set"),
        pytest.param({"notebook": "a.txt", "target": "mpi"}, "is not a notebook", id="no notebook"),
    ],
)
async def test_an_export_that_cannot_be_is_refused_in_words_and_writes_nothing(jp_fetch, jp_root_dir, body, words):
    file_of(jp_root_dir, "%%distributed\nprint(1)")
    (jp_root_dir / "a.txt").write_text("no")
    before = {path.name for path in jp_root_dir.iterdir()}
    with pytest.raises(HTTPClientError) as caught:
        await ask(jp_fetch, **body)

    assert caught.value.code == 400
    assert words in json.loads(caught.value.response.body)["message"]
    assert {path.name for path in jp_root_dir.iterdir()} - {".ipynb_checkpoints"} == before
