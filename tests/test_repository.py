"""The files by which a public host runs, asks and cites agree with the package, and with their own schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml
from packaging.requirements import Requirement

import jupyter_dtrain

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": sorted(
        {*(GITHUB / "ISSUE_TEMPLATE").glob("*.yml")} - {GITHUB / "ISSUE_TEMPLATE/config.yml"}
    ),
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
"""By the name that check-jsonschema brings it under; it asks no network."""
MAJOR = re.compile(r"[\w-]+/[\w./-]+@(v\d+|release/v\d+)")
OWN = "./"

pytestmark = pytest.mark.skipif(not GITHUB.exists(), reason="needs the repository, which is not installed")


def read(path: Path) -> Any:
    """A file of YAML. YAML 1.1 takes the key ``on`` for true."""
    return yaml.safe_load(path.read_text())


def jobs() -> list[tuple[str, dict[str, Any]]]:
    """All jobs of all workflows, with their names."""
    return [(f"{path.stem}/{name}", job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]


def project() -> Any:
    return tomlkit.parse((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_files_are_what_their_schemas_say(schema):
    program = pytest.importorskip("check_jsonschema")
    assert SCHEMAS[schema]
    checked = (
        pytest.importorskip("click.testing")
        .CliRunner()
        .invoke(program.main, ["--builtin-schema", schema, *map(str, SCHEMAS[schema])])
    )

    assert checked.exit_code == 0, checked.output


def test_the_workflows_test_each_python_that_the_package_promises():
    promised = [
        found[1]
        for line in project()["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]
    tested = {name: job["strategy"]["matrix"]["python"] for name, job in jobs() if "strategy" in job}

    assert tested.pop("newest/newest") == [python for python in promised if python in ("3.12", "3.14")]
    assert tested == dict.fromkeys(("dist/try", "tests/check", "tests/test"), promised)


def test_actions_are_pinned_to_a_major_version():
    used = [step["uses"] for _, job in jobs() for step in job.get("steps", []) if "uses" in step]

    assert used
    assert [action for action in used if not MAJOR.fullmatch(action)] == []
    for _, job in jobs():
        if "uses" in job:
            assert job["uses"].startswith(OWN)
            assert (ROOT / job["uses"]).exists()


def test_workflows_may_read_and_only_the_jobs_that_publish_may_more():
    assert [path.name for path in WORKFLOWS if read(path)["permissions"] != {"contents": "read"}] == []
    assert [path.name for path in WORKFLOWS if "concurrency" not in read(path)] == []
    assert {name: job["permissions"] for name, job in jobs() if "permissions" in job} == {
        "docs/publish": {"pages": "write", "id-token": "write"},
        "release/publish": {"id-token": "write"},
        "release/notes": {"contents": "write"},
    }
    kept = [step for _, job in jobs() for step in job.get("steps", []) if "actions/checkout" in step.get("uses", "")]
    assert [step for step in kept if step["with"]["persist-credentials"] is not False] == []


def test_what_the_workflows_call_is_there():
    """Targets of make, scripts and extras."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = "\n".join(step["run"] for _, job in jobs() for step in job.get("steps", []) if "run" in step)
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())["postCreateCommand"]
    asked = set(re.findall(r"\bmake ([a-z0-9-]+)", f"{commands}\n{container}"))
    files = re.findall(r"(?:^|\s)((?:scripts|\.ci)/\S+)", commands)

    assert asked == {"check", "newest", "test-all", "venv"}
    assert asked <= targets
    assert sorted(files) == [".ci/run", "scripts/try_wheel.py"]
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(re.findall(r"\.\[(\w+)\]", commands)) <= {*project()["optional-dependencies"]}


def test_the_citation_and_the_recipe_have_the_packages_version():
    assert read(ROOT / "CITATION.cff")["version"] == jupyter_dtrain.__version__
    assert read(ROOT / "recipe" / "recipe.yaml")["context"]["version"] == jupyter_dtrain.__version__


def test_the_recipe_asks_for_what_the_package_asks_for():
    recipe = read(ROOT / "recipe" / "recipe.yaml")
    asked = {re.sub(r" ", "", line) for line in recipe["requirements"]["run"]}
    wanted = {
        f"{one.name}{','.join(sorted(map(str, one.specifier), reverse=True))}"
        for one in map(Requirement, project()["dependencies"])
    }
    oldest = project()["requires-python"].removeprefix(">=")

    assert asked - wanted == {"__linux", "python>=${{python_min}}"}
    assert wanted <= asked
    assert recipe["context"]["python_min"] == oldest
    assert recipe["about"]["license"] == project()["license"]
    assert recipe["about"]["summary"] == project()["description"] == read(ROOT / "CITATION.cff")["abstract"]
