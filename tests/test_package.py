"""Importing the package is light, and gives what it names."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path

import pytest
import tomlkit
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import jupyter_dtrain
from jupyter_dtrain.core.errors import DtrainError
from jupyter_dtrain.frameworks import Framework

LIMIT = 0.3
"""Seconds: what the package promises."""


def test_the_import_is_light():
    """It imports neither a framework nor MPI, ipyparallel or a socket; the fastest of three processes counts."""
    code = (
        "import sys, time; began = time.process_time(); import jupyter_dtrain; took = time.process_time() - began\n"
        "import json; print(json.dumps([took, sorted(sys.modules)]))"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60).stdout)
        for _ in range(3)
    ]
    modules = runs[0][1]
    heavy = {"torch", "tensorflow", "jax", "mpi4py", "numpy", "ipyparallel", "zmq", "IPython", "matplotlib"}

    assert min(took for took, _ in runs) < LIMIT
    assert [] == [name for name in modules if name.partition(".")[0] in heavy]


def test_the_magics_are_light_as_well():
    """%load_ext adds no framework to the imports of IPython."""
    code = (
        "import sys, time, IPython, ipykernel.kernelapp\n"
        "from IPython.testing.globalipapp import start_ipython\n"
        "shell = start_ipython(); began = time.process_time()\n"
        "import jupyter_dtrain; jupyter_dtrain.load_ipython_extension(shell)\n"
        "took = time.process_time() - began\n"
        "import json; print(json.dumps([took, sorted(sys.modules)]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)
    _, modules = json.loads(answer.stdout.splitlines()[-1])

    assert [] == [name for name in modules if name.partition(".")[0] in {"torch", "tensorflow", "jax", "mpi4py"}]


def test_frameworks_are_known_without_being_imported():
    """A rank pays for what its cells import, and for nothing else."""
    code = (
        "from jupyter_dtrain.rank.plugins import Plugins\n"
        "names = [name for name, _ in Plugins.load()._plugins]\n"
        "import json, sys; print(json.dumps([names, sorted(sys.modules)]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)
    names, modules = json.loads(answer.stdout)
    heavy = {"numpy", "torch", "tensorflow", "tf_keras", "keras", "jax", "jaxlib", "horovod", "deepspeed", "mpi4py"}

    assert {"horovod", "jax", "keras", "mpi", "tensorflow", "torch"} <= set(names)
    assert [] == [name for name in modules if name.partition(".")[0] in heavy]


def test_every_name_that_is_promised_is_there():
    """__all__, dir() and attributes agree."""
    names = jupyter_dtrain.__all__
    assert sorted(names) == sorted(set(names))
    assert {*dir(jupyter_dtrain)} == {*names, "comm"}, "a star import must not initialise MPI"
    for name in jupyter_dtrain.__all__:
        assert getattr(jupyter_dtrain, name) is not None


def test_every_name_that_is_promised_needs_no_extra():
    """`pip install jupyter-dtrain` brings none of these."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('cryptography', 'yaml', 'jupyter_server', 'torch', 'tensorboard'))\n"
        "import jupyter_dtrain\n"
        "for name in jupyter_dtrain.__all__: getattr(jupyter_dtrain, name)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=60, text=True)

    assert answer.stderr == ""


def test_names_are_what_they_say():
    """Classes come from their homes; errors have one base."""
    for name in jupyter_dtrain.__all__:
        thing = getattr(jupyter_dtrain, name)
        if isinstance(thing, type) and issubclass(thing, Exception):
            assert issubclass(thing, DtrainError)
        if isinstance(thing, type):
            assert thing.__name__ == name


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("HealFailed", "ReplaceFailed"),
        ("NotDriver", "ReadOnly"),
        ("SyncFailed", "UploadFailed"),
        ("resync", "broadcast"),
    ],
)
def test_a_former_name_is_the_new_one_and_says_so(former, now):
    with pytest.warns(DeprecationWarning, match=f"jupyter_dtrain.{former} is called {now} now"):
        found = getattr(jupyter_dtrain, former)

    assert found is getattr(jupyter_dtrain, now)
    assert former not in dir(jupyter_dtrain)


def test_a_name_that_is_not_there_is_an_attribute_error():
    """Every module acts so."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = jupyter_dtrain.nothing


def test_without_a_world_there_is_no_current_session():
    """The error names the way on. The test asks in a new process, since other tests have worlds here."""
    code = "import jupyter_dtrain as j\ntry: j.current()\nexcept j.NoWorld as error: print(error)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60, text=True)

    assert "start one with %distributed start" in answer.stdout


def test_the_front_end_has_the_packages_version():
    """npm knows no `.dev0`."""
    package = Path(jupyter_dtrain.__file__).parents[1] / "labextension" / "package.json"
    if not package.exists():
        pytest.skip("needs the sources of the front end, which are not installed")

    assert json.loads(package.read_text())["version"] == jupyter_dtrain.__version__.partition(".dev")[0]


def test_the_changelog_has_the_version_that_is_built():
    """With the day of its release; a version with `.dev0` has what is unreleased."""
    changelog = Path(jupyter_dtrain.__file__).parents[1] / "CHANGELOG.md"
    if not changelog.exists():
        pytest.skip("needs the repository, which is not installed")
    version = jupyter_dtrain.__version__
    wanted = r"## Unreleased" if ".dev" in version else rf"## {re.escape(version)} - \d{{4}}-\d\d-\d\d"

    assert re.search(rf"^{wanted}$", changelog.read_text(), re.MULTILINE)


def test_types_are_shipped():
    """py.typed lies beside the code."""
    assert (Path(jupyter_dtrain.__file__).parent / "py.typed").exists()


def test_the_files_that_jupyterlab_loads_are_small():
    """The sizes are those on disk; the styles are a script as well. Nothing is loaded from elsewhere."""
    static = Path(jupyter_dtrain.__file__).parent / "labextension" / "static"
    if not static.exists():
        pytest.skip("needs the front end: `make front-end`")
    tab = set(static.glob("runs.*.js"))
    parts = ("runs", "start", "output", "pipelines", "variables", "history", "speedup", "steps", "profile")
    later = {script for part in parts for script in static.glob(f"{part}.*.js")}
    scripts = set(static.glob("*.js")) - later
    styles = {script for script in scripts if 'createElement("style")' in script.read_text()}
    assert len(styles) == 1
    assert sum(style.stat().st_size for style in styles) < 30_000
    assert 50_000 < sum(script.stat().st_size for script in scripts - styles) < 188_000
    assert 10_000 < sum(script.stat().st_size for script in tab) < 140_000, (
        "the Runs tab, which loads when it is opened"
    )
    assert (static / "LICENSE.uPlot").exists()


@pytest.mark.slow
def test_wheel_and_sdist_carry_the_front_end_and_switch_it_on(tmp_path):
    """The widget, the extension of JupyterLab and its settings, and the file that enables the server's half."""
    import tarfile
    import zipfile

    root = Path(jupyter_dtrain.__file__).parents[1]
    if not (root / "hatch_build.py").exists():
        pytest.skip("needs the sources, which are not installed")
    if not (root / "jupyter_dtrain" / "labextension" / "package.json").exists():
        pytest.skip("needs the front end: `make front-end`")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=120)
    got = subprocess.run([python, "-m", "pip", "install", "-q", "hatchling"], check=False, timeout=300)
    if got.returncode:
        pytest.skip("needs hatchling from a package index")
    subprocess.run([python, "-m", "hatchling", "build", "-d", tmp_path / "dist"], cwd=root, check=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")

    carried = set(zipfile.ZipFile(wheel).namelist())
    data = next(name for name in carried if ".data/data/" in name).partition("/")[0]
    lab = f"{data}/data/share/jupyter/labextensions/jupyter-dtrain"
    for name in ("package.json", "install.json", "schemas/jupyter-dtrain/sidebar.json"):
        assert f"{lab}/{name}" in carried
    assert any(name.startswith(f"{lab}/static/remoteEntry.") for name in carried)
    assert f"{data}/data/etc/jupyter/jupyter_server_config.d/jupyter_dtrain.json" in carried
    assert {"jupyter_dtrain/static/widget.js", "jupyter_dtrain/static/LICENSE.uPlot"} <= carried
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"jupyter_dtrain/static/widget.js", "jupyter_dtrain/labextension/package.json", "hatch_build.py"}
    assert wanted | {"jupyter-config/jupyter_dtrain.json", "labextension/src/lab/index.ts"} <= names


SITES_OWN = {"torch", "tensorflow", "tensorflow-cpu", "tf-keras", "keras", "jax", "jaxlib", "horovod", "numpy"}
"""What a site has installed for its GPUs and drivers, or what that was built against."""


def test_an_install_replaces_no_framework():
    """Without an extra, neither the package nor anything that it brings along asks for one, in whatever version."""
    asked, asks = set(), [Requirement("jupyter-dtrain")]
    while asks:
        asking = asks.pop()
        asked.add(canonicalize_name(asking.name))
        try:
            wanted = [Requirement(line) for line in requires(asking.name) or ()]
        except PackageNotFoundError:
            continue  # something else of this environment stands in for it
        for want in wanted:
            applies = want.marker is None or any(want.marker.evaluate({"extra": one}) for one in {"", *asking.extras})
            if applies and canonicalize_name(want.name) not in asked:
                asks.append(want)

    assert {"ipyparallel", "mpi4py", "traitlets"} <= asked
    assert asked & SITES_OWN == set()
    assert any("torch" in line and "extra ==" in line for line in requires("jupyter-dtrain"))


def test_an_extra_keeps_the_framework_of_a_site():
    """Extras name lower bounds only: an exact version or an upper bound would replace a build that is newer."""
    file = Path(jupyter_dtrain.__file__).parents[1] / "pyproject.toml"
    if not file.exists():
        pytest.skip("needs the repository, which is not installed")
    project = tomlkit.parse(file.read_text()).unwrap()["project"]
    asked = [Requirement(line) for extra in project["optional-dependencies"].values() for line in extra]
    bounds = {
        (want.name, bound.operator) for want in asked for bound in want.specifier if want.name not in {"mypy", "ruff"}
    }

    assert ("torch", ">=") in bounds
    assert {operator for _, operator in bounds} == {">="}
    assert all(url.startswith("https://") for url in project["urls"].values())


PUBLIC = (
    "jupyter_dtrain.frameworks:Framework",
    "jupyter_dtrain.frameworks.horovod:install_shim",
    "jupyter_dtrain.magics:load",
    "jupyter_dtrain.magics:unload",
    "jupyter_dtrain.server:_jupyter_server_extension_points",
)
"""Names beyond ``__all__`` that others use: plug-ins, scripts, IPython and Jupyter Server."""


@pytest.mark.parametrize("place", PUBLIC)
def test_a_path_that_others_use_stays(place):
    """Files may move; these may not."""
    module, name = place.split(":")

    assert callable(getattr(importlib.import_module(module), name))


def test_plug_ins_are_found_where_they_always_were():
    """The entry point group lists them, each a class that derives from the public one."""
    found = entry_points(group="jupyter_dtrain.frameworks")

    assert {"torch", "tensorflow", "jax", "mpi", "keras", "horovod", "deepspeed", "lightning"} <= set(found.names)
    assert all(issubclass(entry.load(), Framework) for entry in found)


FRAMEWORKS = re.compile(
    r"\b(?:torch|pytorch|gloo|nccl|tensorflow|keras|jax|horovod|deepspeed|lightning|accelerate|transformers)\b",
    re.IGNORECASE,
)


def test_the_core_names_no_framework():
    """They speak through their plug-ins and declarations. torchrun's environment belongs to all of them.

    Targets of an export are launchers and platforms, each with a module that writes its words.
    """
    package = Path(jupyter_dtrain.__file__).parent
    targets = {
        package / "jobs" / f"{name}.py" for name in ("deepspeed", "launchers", "platforms", "sagemaker", "exporting")
    }
    targets.add(package / "launch" / "start_options.py")  # made of what the frameworks declare
    files = [file for file in package.rglob("*.py") if package / "frameworks" not in file.parents]
    files = [file for file in files if file not in targets]
    named = {f"{file.relative_to(package)}: {word}" for file in files for word in FRAMEWORKS.findall(file.read_text())}

    assert len(files) > 100
    assert named == set()
