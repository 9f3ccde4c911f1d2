"""Files for platforms, checked by their own libraries. ``make jobs`` installs these into an environment apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest

from jupyter_dtrain import BadRequest
from jupyter_dtrain.jobs import export_notebook
from tests.jobs.cells import PATIENCE, notebook, ranks, run

yaml = pytest.importorskip("yaml")

ROLE = "arn:aws:iam::123456789012:role/trainer"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/torch:1"


def needs(package, before=""):
    """Skip a test, by name, where a library is missing, or where it is not older than a version."""
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        version = ""
    found = version and (not before or int(version.partition(".")[0]) < int(before))
    return pytest.mark.skipif(not found, reason=f"needs {package}{before and f'<{before}'}: make jobs installs it")


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
    "image": job.environment.image,
    "inputs": {name: [one.type, one.path, one.mode] for name, one in job.inputs.items()},
    "outputs": {name: [one.type, one.path, one.mode] for name, one in job.outputs.items()},
}))
"""


@needs("azure-ai-ml")
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


@needs("azure-ai-ml")
def test_azure_ml_s_loader_takes_data_environment_and_outputs(tmp_path):
    place = "azureml://datastores/workspaceblobstore/paths/"
    settings = {"inputs": f"data=azureml:digits:1,labels={place}labels.csv", "outputs": f"out={place}models,log"}
    cells = [ranks(1, f"import torch\n{READS}log = 'logs'")]
    export(tmp_path, "azureml", "torch", "job.yml", settings, cells=cells)
    load = [sys.executable, "-c", LOAD, tmp_path / "job.yml"]
    ended = subprocess.run(load, check=False, capture_output=True, text=True, timeout=PATIENCE)

    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert (found["passed"], found["errors"]) == (True, "{}")
    assert found["inputs"] == {
        "data": ["uri_folder", "azureml:digits:1", "ro_mount"],
        "labels": ["uri_file", f"{place}labels.csv", "ro_mount"],
    }
    assert found["outputs"] == {
        "out": ["uri_folder", f"{place}models", "rw_mount"],
        "log": ["uri_folder", None, "rw_mount"],
    }
    places = ("inputs.data", "inputs.labels", "outputs.out", "outputs.log")
    assert found["command"].split() == [
        "python",
        "job.py",
        *(word for one in places for word in (f"--{one.partition('.')[2]}", f"${{{{{one}}}}}")),
    ]
    assert found["image"].startswith("mcr.microsoft.com/azureml/")


def test_azure_ml_gets_names_of_variables_and_no_values(tmp_path):
    made = export(tmp_path, "azureml", "torch", "job.yml", env=("CHOICE",))

    assert made.command.endswith('--set environment_variables.CHOICE="$CHOICE"')
    assert "CHOICE" not in str(documents(tmp_path / "job.yml"))


@needs("kubeflow-trainer-api")
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


@needs("kubeflow-training")
def test_an_mpi_job_is_what_kubeflow_s_schema_says(tmp_path):
    from kubeflow.training.api_client import ApiClient

    class Response:
        data = ""

    export(tmp_path, "kubernetes", "mpi4py", "job.yaml", {"image": "me/mpi:1"}, gpus=True, env=("CHOICE",))
    script, document = documents(tmp_path / "job.yaml")
    Response.data = json.dumps(document)
    client = ApiClient()
    job = client.deserialize(Response, "KubeflowOrgV1MPIJob")

    assert client.sanitize_for_serialization(job) == document
    assert job.spec.slots_per_worker == 2
    assert job.spec.mpi_replica_specs["Worker"].replicas == 2
    assert script["data"]["job.py"] == (tmp_path / "job.py").read_text()


def test_an_mpi_job_installs_on_each_node_and_starts_all_ranks(tmp_path):
    """As a launcher's pod would run it, without a cluster: the real mpirun, and a pip that says what it was asked."""
    settings = {"image": "me/mpi:1"}
    cells = [ranks(1, "import mpi4py, os\nprint('rank', os.environ['RANK'], flush=True)")]
    export(tmp_path, "kubernetes", "mpi4py", "job.yaml", settings, cells=cells, nodes=1, ranks=2)
    _script, document = documents(tmp_path / "job.yaml")
    (container,) = document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    (mounted,) = container["volumeMounts"]
    (tmp_path / "pip").write_text("#!/bin/sh\necho pip $@\n")
    (tmp_path / "pip").chmod(0o755)
    line = container["args"][0].replace(f"{mounted['mountPath']}/", f"{tmp_path}/")
    words = f"PATH={tmp_path}:$PATH\n{line}"
    ended = run("bash", "-c", words, cwd=tmp_path)

    assert container["image"] == "me/mpi:1"
    assert ended.returncode == 0, ended.stderr
    first, *others = ended.stdout.splitlines()
    assert re.fullmatch(r"pip install --quiet mpi4py==[\d.]+", first)
    assert sorted(others) == ["rank 0", "rank 1"]
    export(tmp_path, "kubernetes", "mpi4py", "other.yaml", settings | {"install": "no"})
    assert "pip" not in str(documents(tmp_path / "other.yaml")[1])


def test_an_mpi_job_without_an_image_is_refused(tmp_path):
    with pytest.raises(BadRequest, match=r"needs an image with Python and Open MPI: name yours with --image"):
        export(tmp_path, "kubernetes", "mpi4py", "job.yaml")
    assert list(tmp_path.iterdir()) == []


def test_the_gpus_of_a_pod_are_those_of_its_ranks_or_as_many_as_asked_for(tmp_path):
    def gpus(file, code, settings):
        export(tmp_path, "kubernetes", "torch", file, settings, cells=[ranks(1, code)])
        return documents(tmp_path / file)[0]["spec"]["trainer"].get("resourcesPerNode")

    cuda = "import torch\ndevice = torch.device('cuda')"
    assert gpus("cpu.yaml", "import torch", {}) is None
    assert gpus("code.yaml", cuda, {}) == {"limits": {"nvidia.com/gpu": "2"}}
    assert gpus("none.yaml", cuda, {"gpus_per_node": "0"}) is None
    assert gpus("more.yaml", cuda, {"gpus_per_node": "8"}) == {"limits": {"nvidia.com/gpu": "8"}}
    with pytest.raises(BadRequest, match="whatever their kind: give --gpus-per-node 8, not 'a100:8'"):
        gpus("kind.yaml", cuda, {"gpus_per_node": "a100:8"})


def test_kubernetes_is_refused_for_tensorflow_with_the_targets_that_serve_it(tmp_path):
    with pytest.raises(BadRequest, match=r"set no TF_CONFIG.* export to azureml or sagemaker"):
        export(tmp_path, "kubernetes", "tensorflow", "job.yaml")
    assert list(tmp_path.iterdir()) == []


SEND = """
import json, os, runpy, sys, warnings
warnings.simplefilter("ignore")
os.environ.update(AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y", AWS_DEFAULT_REGION="us-west-2")
import boto3
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

ANSWERS = {"GetCallerIdentity": {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me"}}
ANSWERS["ListBuckets"] = {"Buckets": []}

def answer(model, params, **more):
    \"\"\"The cloud's words: botocore has checked the request, and would send its body now.\"\"\"
    if model.name == "CreateTrainingJob":
        body = params["body"]
        with open(sys.argv[2], "wb") as file:
            file.write(body if isinstance(body, bytes) else body.encode())
        os._exit(0)
    if model.service_model.service_name == "iam":
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "offline"}}, model.name)
    return AWSResponse(params["url"], 200, {}, None), ANSWERS.get(model.name, {})

cloud = boto3.Session(region_name="us-west-2")
cloud.events.register("before-call", answer)
made = runpy.run_path(sys.argv[1])
if "make_trainer" in made:
    from sagemaker.core.helper.session_helper import Session
    made["make_trainer"](sagemaker_session=Session(cloud, default_bucket="bucket")).train(wait=False)
else:
    from sagemaker.session import Session
    inputs = made["INPUTS"]
    made["make_estimator"](sagemaker_session=Session(cloud, default_bucket="bucket")).fit(inputs, wait=False)
"""
DATA = {"inputs": "data=s3://bucket/digits,labels=s3://bucket/labels.csv", "outputs": "out=s3://bucket/models"}
READS = "data = 'digits'\nlabels = 'labels.csv'\nout = 'models'\n"


def sent(folder):
    """The request with which the exported program would start the job, as SageMaker's own library makes it."""
    words = [sys.executable, "-c", SEND, folder / "train_launch.py", folder / "request.json"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=folder)
    assert (folder / "request.json").exists(), ended.stderr[-3000:]
    return json.loads((folder / "request.json").read_text())


def channels(request):
    return {one["ChannelName"]: one["DataSource"]["S3DataSource"]["S3Uri"] for one in request["InputDataConfig"]}


@needs("sagemaker-train")
@pytest.mark.parametrize(("package", "kind"), [("torch", ""), ("torch", "smp"), ("mpi4py", "")])
def test_sagemaker_s_training_request_is_complete(tmp_path, monkeypatch, package, kind):
    """Data, environment, time, outputs, and the paths that the script gets as its arguments."""
    monkeypatch.setenv("CHOICE", "given")
    settings = {"image": IMAGE, "role": ROLE, "distribution": kind, "time": "2-12", **DATA}
    cells = [ranks(1, f"import {package}\n{READS}")]
    export(tmp_path, "sagemaker", package, "train.py", settings, cells=cells, env=("CHOICE",))
    request = sent(tmp_path)
    paths = {
        "data": "/opt/ml/input/data/data",
        "labels": "/opt/ml/input/data/labels/labels.csv",
        "out": "/opt/ml/model",
    }

    assert request["HyperParameters"] == paths | ({"mp_parameters": "{}"} if kind == "smp" else {})
    assert channels(request)["data"] == "s3://bucket/digits"
    assert channels(request)["labels"] == "s3://bucket/labels.csv"
    assert request["OutputDataConfig"]["S3OutputPath"] == "s3://bucket/models"
    assert request["ResourceConfig"]["InstanceCount"] == 2
    assert request["StoppingCondition"]["MaxRuntimeInSeconds"] == 60 * 3600
    assert request["Environment"] == {"CHOICE": "given"}
    assert "given" not in (tmp_path / "train_launch.py").read_text()
    # The script takes the arguments that SageMaker's drivers make of these.
    words = [word for name, value in request["HyperParameters"].items() for word in (f"--{name}", value)]
    assert "unrecognized" not in run(sys.executable, "train.py", *words, cwd=tmp_path, CHOICE="x").stderr


@needs("sagemaker-train")
@pytest.mark.parametrize(("package", "driver"), [("torch", "torchrun_driver.py"), ("mpi4py", "mpi_driver.py")])
def test_sagemaker_starts_the_script_with_the_driver_asked_for(tmp_path, package, driver):
    """The drivers are in a channel of the request; the library writes them down before it sends them."""
    export(tmp_path, "sagemaker", package, "train.py", {"image": IMAGE, "role": ROLE})
    words = [sys.executable, "-c", DRIVERS, tmp_path / "train_launch.py"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])

    assert found["distributed"]["process_count_per_node"] == 2
    assert driver in found["line"]
    assert found["source"]["entry_script"] == "train.py"


DRIVERS = (
    SEND.partition("made = ")[0]
    + """
from sagemaker.core.helper.session_helper import Session
trainer = runpy.run_path(sys.argv[1])["make_trainer"](sagemaker_session=Session(cloud, default_bucket="bucket"))
trainer._create_training_job_args()
code = trainer._temp_code_dir.name
print(json.dumps({
    "distributed": json.load(open(os.path.join(code, "distributed.json"))),
    "line": open(os.path.join(code, "sm_train.sh")).read(),
    "source": json.load(open(os.path.join(code, "sourcecode.json"))),
}))
"""
)


@needs("sagemaker", before="3")
def test_sagemaker_s_data_parallel_library_is_in_the_request(tmp_path):
    settings = {"image": IMAGE, "role": ROLE, "distribution": "smddp", **DATA}
    cells = [ranks(1, f"import torch\n{READS}backend = 'smddp'")]
    export(tmp_path, "sagemaker", "torch", "train.py", settings, cells=cells, ranks=16)
    request = sent(tmp_path)
    parameters = request["HyperParameters"]

    assert parameters["sagemaker_distributed_dataparallel_enabled"] == "true"
    assert json.loads(parameters["labels"]) == "/opt/ml/input/data/labels/labels.csv"
    assert channels(request) == {"data": "s3://bucket/digits", "labels": "s3://bucket/labels.csv"}
    assert request["ResourceConfig"]["InstanceType"] == "ml.p4d.24xlarge"
    assert request["OutputDataConfig"]["S3OutputPath"] == "s3://bucket/models"
    assert request["StoppingCondition"]["MaxRuntimeInSeconds"] == 24 * 3600


@needs("sagemaker", before="3")
def test_sagemaker_s_parameter_servers_are_in_the_request(tmp_path):
    """The second version of the library has them. No argument comes with them that the script does not know."""
    roles = ("chief", "worker", "worker", "ps")
    export(tmp_path, "sagemaker", "tensorflow", "train.py", {"image": IMAGE, "role": ROLE}, roles=roles)
    request = sent(tmp_path)
    names = {name for name in request["HyperParameters"] if not name.startswith("sagemaker_")}

    assert request["HyperParameters"]["sagemaker_parameter_server_enabled"] == "true"
    assert request["ResourceConfig"]["InstanceCount"] == 3
    assert names == set()


def test_what_sagemaker_s_data_parallel_library_needs_is_said(tmp_path):
    """And a requirements file that its images read, without the PyTorch that they have."""
    settings = {"distribution": "smddp", "instance": "ml.g5.12xlarge"}
    guarded = "import torch, numpy\nif False:\n    import smdistributed.dataparallel.torch.torch_smddp"
    made = export(tmp_path, "sagemaker", "torch", "train.py", settings, cells=[ranks(1, guarded)])
    notes = " ".join(made.notes)

    assert re.fullmatch(r"numpy==[\d.]+\n", (tmp_path / "requirements.txt").read_text())
    assert "No cell chooses the backend smddp" in notes
    assert "ml.p4d.24xlarge and ml.p4de.24xlarge, not for ml.g5.12xlarge" in notes
    assert "pip install 'sagemaker<3'" in notes
    assert "smdistributed" not in (tmp_path / "train.py").read_text().partition("# ///\n\n")[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"distribution": "smdistributed"}, "smddp for data parallel, or smp for model parallel"),
        ({"inputs": "lr=s3://a/b"}, "gives 'lr' to the script, which has no such argument. It has data, labels, out."),
        ({"inputs": "data"}, "--inputs names no place for data: write data=s3://bucket/digits"),
        ({"outputs": "out,data"}, "SageMaker keeps one folder of a job"),
        ({"time": "soon"}, "must be a time such as 90 (minutes), 12:00:00 or 2-0, not 'soon'"),
    ],
)
def test_settings_that_sagemaker_cannot_follow_are_refused(tmp_path, settings, words):
    with pytest.raises(BadRequest) as caught:
        export(tmp_path, "sagemaker", "torch", "train.py", settings, cells=[ranks(1, f"import torch\n{READS}")])
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


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
