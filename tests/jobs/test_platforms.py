"""Files for platforms, checked by their own libraries. ``make jobs`` installs these into an environment apart."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.jobs import export_notebook
from tests.jobs.cells import PATIENCE, notebook, ranks

yaml = pytest.importorskip("yaml")

ROLE = "arn:aws:iam::123456789012:role/trainer"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/torch:1"


def needs(package):
    """Skip a test, by name, where a library is missing."""
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    return pytest.mark.skipif(not found, reason=f"needs {package}: make jobs installs it")


def export(folder, target, package, file, settings=None, cells=None, **world):
    cells = cells or [ranks(1, f"import {package}\nprint('hello')")]
    book = notebook(*cells, **{"ranks": 4, "nodes": 2, **world})
    return export_notebook(book, target, folder / file, settings=settings)


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


LOAD = """
import json, sys, warnings
warnings.simplefilter("ignore")
from azure.ai.ml import load_job
job = load_job(sys.argv[1])
checked = job._validate()
print(json.dumps({
    "passed": checked.passed, "errors": str(checked.error_messages), "distribution": vars(job.distribution),
    "instances": job.resources["instance_count"], "conda": job.environment.conda_file, "command": job.command,
}))
"""


@needs("azure.ai.ml")
@pytest.mark.parametrize(
    ("package", "roles", "distribution", "instances"),
    [
        ("torch", (), {"type": "pytorch", "process_count_per_instance": 2}, 2),
        ("mpi4py", (), {"type": "mpi", "process_count_per_instance": 2}, 2),
        (
            "tensorflow",
            ("chief", "worker", "worker", "ps"),
            {"type": "tensorflow", "worker_count": 3, "parameter_server_count": 1},
            4,
        ),
    ],
)
def test_azure_ml_s_own_loader_takes_the_job(tmp_path, package, roles, distribution, instances):
    export(tmp_path, "azureml", package, "job.yml", roles=roles)
    load = [sys.executable, "-c", LOAD, tmp_path / "job.yml"]
    ended = subprocess.run(load, check=False, capture_output=True, text=True, timeout=PATIENCE)

    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    kept = {name: value for name, value in found["distribution"].items() if value is not None}
    assert (found["passed"], found["errors"]) == (True, "{}")
    assert {**kept, "type": kept["type"].lower()} == distribution
    assert found["instances"] == instances
    assert found["command"] == "python job.py"
    assert any(line.startswith(f"{package}==") or line == package for line in found["conda"]["dependencies"][2]["pip"])


def test_azure_ml_gets_names_of_variables_and_no_values(tmp_path):
    made = export(tmp_path, "azureml", "torch", "job.yml", env=("CHOICE",))

    assert made.command.endswith('--set environment_variables.CHOICE="$CHOICE"')
    assert "CHOICE" not in str(documents(tmp_path / "job.yml"))


@needs("kubeflow_trainer_api")
def test_a_train_job_is_what_kubeflow_s_schema_says(tmp_path):
    """All of it: a field that the schema does not know would be missing afterwards."""
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    export(tmp_path, "kubernetes", "torch", "job.yaml", {"image": "mine"}, gpus=True, env=("CHOICE",))
    (document,) = documents(tmp_path / "job.yaml")
    job = TrainerV1alpha1TrainJob.from_dict(document)

    assert job.to_dict() == document
    assert (job.spec.trainer.num_nodes, job.spec.trainer.num_proc_per_node) == (2, 2)
    assert job.spec.trainer.env[0].value_from.secret_key_ref.key == "CHOICE"
    assert "print('hello')" in job.spec.trainer.args[0]


def test_the_command_of_a_train_job_brings_the_script_along(tmp_path):
    """As a pod would run it, without a cluster: ``torchrun`` is ``cat`` here."""
    export(
        tmp_path, "kubernetes", "torch", "job.yaml", {"install": "no"}, cells=[ranks(1, "import torch\nx = '$HOME `'")]
    )
    (line,) = documents(tmp_path / "job.yaml")[0]["spec"]["trainer"]["args"]
    work = tmp_path / "pod"
    work.mkdir()
    (work / "torchrun").symlink_to("/bin/cat")
    ended = subprocess.run(
        ["/bin/bash", "-c", line],
        check=True,
        capture_output=True,
        text=True,
        cwd=work,
        env={"PATH": f"{work}:/usr/bin:/bin"},
    )

    assert ended.stdout == (tmp_path / "job.py").read_text()


@needs("kubeflow.training")
def test_an_mpi_job_is_what_kubeflow_s_schema_says(tmp_path):
    from kubeflow.training.api_client import ApiClient

    class Response:
        data = ""

    export(tmp_path, "kubernetes", "mpi4py", "job.yaml", gpus=True, env=("CHOICE",))
    script, document = documents(tmp_path / "job.yaml")
    Response.data = json.dumps(document)
    client = ApiClient()
    job = client.deserialize(Response, "KubeflowOrgV1MPIJob")

    assert client.sanitize_for_serialization(job) == document
    assert job.spec.slots_per_worker == 2
    assert job.spec.mpi_replica_specs["Worker"].replicas == 2
    assert script["data"]["job.py"] == (tmp_path / "job.py").read_text()


def test_kubernetes_is_refused_for_tensorflow_with_the_targets_that_serve_it(tmp_path):
    with pytest.raises(BadRequest, match=r"set no TF_CONFIG.* export to azureml or sagemaker"):
        export(tmp_path, "kubernetes", "tensorflow", "job.yaml")
    assert list(tmp_path.iterdir()) == []


BUILD = """
import json, os, runpy, sys, warnings
warnings.simplefilter("ignore")
os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y", AWS_DEFAULT_REGION="us-west-2")
import boto3
from botocore.client import BaseClient
from botocore.exceptions import ClientError

def refuse(self, name, arguments):
    raise ClientError({"Error": {"Code": "AccessDenied", "Message": "offline"}}, name)

BaseClient._make_api_call = refuse  # there is no network
from sagemaker.core.helper.session_helper import Session

class Offline(Session):
    def upload_data(self, path, bucket=None, key_prefix=None, **more):
        return f"s3://{bucket}/{key_prefix}"
    def default_bucket(self):
        return "bucket"
    def account_id(self):
        return "123456789012"

session = Offline(boto3.Session(region_name="us-west-2"), default_bucket="bucket")
trainer = runpy.run_path(sys.argv[1])["make_trainer"](sagemaker_session=session)
request = trainer._create_training_job_args()
code = trainer._temp_code_dir.name
print(json.dumps({
    "count": request["resource_config"].instance_count,
    "parameters": request["hyper_parameters"],
    "environment": request["environment"],
    "distributed": json.load(open(os.path.join(code, "distributed.json"))),
    "line": open(os.path.join(code, "sm_train.sh")).read(),
    "source": json.load(open(os.path.join(code, "sourcecode.json"))),
}))
"""


@needs("sagemaker.train")
@pytest.mark.parametrize(
    ("package", "kind", "driver"),
    [
        ("torch", "", "torchrun_driver.py"),
        ("torch", "smdistributed", "torchrun_driver.py"),
        ("mpi4py", "", "mpi_driver.py"),
    ],
)
def test_sagemaker_s_training_request_has_the_distribution_asked_for(tmp_path, monkeypatch, package, kind, driver):
    monkeypatch.setenv("CHOICE", "given")
    settings = {"image": IMAGE, "role": ROLE, "distribution": kind}
    export(tmp_path, "sagemaker", package, "train.py", settings, env=("CHOICE",))
    build = [sys.executable, "-c", BUILD, tmp_path / "train_launch.py"]
    ended = subprocess.run(build, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["count"] == 2
    assert found["distributed"]["process_count_per_node"] == 2
    assert driver in found["line"]
    assert ("mp_parameters" in found["parameters"]) is (kind == "smdistributed")
    assert found["source"]["entry_script"] == "train.py"
    assert found["environment"]["CHOICE"] == "given"
    assert "given" not in (tmp_path / "train_launch.py").read_text()


def test_sagemaker_s_parameter_servers_are_an_estimator_s(tmp_path):
    """The second version of the library has them; the third has none."""
    roles = ("chief", "worker", "worker", "ps")
    made = export(tmp_path, "sagemaker", "tensorflow", "train.py", {"image": IMAGE, "role": ROLE}, roles=roles)
    text = (tmp_path / "train_launch.py").read_text()
    compile(text, "train_launch.py", "exec")

    assert 'distribution={"parameter_server": {"enabled": True}}' in text
    assert "instance_count=3" in text
    assert "pip install 'sagemaker<3'" in str(made.notes)


def test_a_script_that_would_hide_sagemaker_is_refused(tmp_path):
    with pytest.raises(BadRequest, match=r"sagemaker\.py would hide the package sagemaker"):
        export(tmp_path, "sagemaker", "torch", "sagemaker.py")


CONFIG = """
import deepspeed
def start(stage):
    return {'train_micro_batch_size_per_gpu': 16, 'zero_optimization': {'stage': stage}}
"""


def test_deepspeed_gets_its_hostfile_and_the_configuration_that_cells_write_down(tmp_path):
    runner = pytest.importorskip("deepspeed.launcher.runner")
    settings = {"hosts": "gpu1,gpu2"}
    made = export(tmp_path, "deepspeed", "deepspeed", "train.sh", settings, cells=[ranks(1, CONFIG)])

    assert runner.fetch_hostfile(str(tmp_path / "train.hostfile")) == {"gpu1": 2, "gpu2": 2}
    written = json.loads((tmp_path / "train.deepspeed.json").read_text())
    assert written == {"train_micro_batch_size_per_gpu": 16, "zero_optimization": {}}
    assert "Cells compute zero_optimization.stage, so train.deepspeed.json lacks it; the script has it." in made.notes

    from deepspeed.runtime.config import DeepSpeedConfig

    assert DeepSpeedConfig(written).train_micro_batch_size_per_gpu == 16


def test_deepspeed_is_refused_where_no_cell_uses_it(tmp_path):
    with pytest.raises(BadRequest, match="No cell imports deepspeed: export to torchrun, mpi or slurm instead"):
        export(tmp_path, "deepspeed", "torch", "train.sh")
