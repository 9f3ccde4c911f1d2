"""``%distributed run`` in a notebook."""

from __future__ import annotations


def test_a_script_is_run_with_its_arguments_and_looked_at(ranks, tmp_path):
    """Options before the script are the cell's, those behind it the script's."""
    script = tmp_path / "train now.py"
    script.write_text("import os, sys\nfound = sys.argv[1:]\nprint('script', int(os.environ['RANK']) // 3)\n")
    cell = ranks.ok(f"%distributed run -r 0,2 -o ran '{script}' --ranks 7 -1 -- 'a b'")
    looked = ranks.ok("%%rank 0,2\nfound")
    missing = ranks.run("%distributed run nowhere.py")

    assert cell.out == "[0,2] script 0\n"
    assert ranks.value("ran.outcome") == "ok"
    assert looked.display_texts == ["[0,2] ['--ranks', '7', '-1', '--', 'a b']"]
    assert missing.ename == "BadRequest"
    assert "nowhere.py cannot be read: No such file or directory" in missing.said


def test_a_module_is_run_with_its_arguments(ranks):
    """As ``python -m`` does, and a name that is none is refused."""
    cell = ranks.ok("%distributed run -r 0 -m json.tool -h")
    missing = ranks.run("%distributed run -m package.of_nobody --epochs 3")
    refused = ranks.run("%distributed run -m train/now.py")

    assert cell.out.startswith("[0] usage: python -m json.tool [-h]")
    assert "No module named package.of_nobody" in missing.said
    assert "jupyter_dtrain" not in missing.said
    assert refused.ename == "BadRequest"
    assert "a file needs no -m" in refused.said


def test_scripts_are_offered(ranks, tmp_path):
    """Python files and folders."""
    (tmp_path / "train.py").touch()
    (tmp_path / "trains").mkdir()
    (tmp_path / "track.txt").touch()

    assert sorted(ranks.complete(f"%distributed run {tmp_path}/tr")) == [f"{tmp_path}/train.py", f"{tmp_path}/trains/"]
