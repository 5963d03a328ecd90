# Everything that people type. `make help` lists it; each target says what to do next.
SHELL := /bin/bash
ENV ?= dev
SCENARIO ?= default
CONFIG ?= tiny.toml
SLICE ?= v6e-16
LAYER ?= tpu
PYTHON ?= python3
# Tests wait for processes now and then: two workers more than cores.
WORKERS ?= $(shell echo $$(($$(nproc) + 2)))
space := $(subst ,, )
SCENARIOS := $(sort $(subst _,-,$(patsubst rehearsal/scenarios/%.py,%,$(wildcard rehearsal/scenarios/*.py))))
export PYTHON
# The virtual environment holds the locked packages and links to the pinned programs.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PULUMI_SKIP_UPDATE_CHECK := true
# Without compiled modules each process takes seconds longer to start.
unexport PYTHONDONTWRITEBYTECODE
# A fresh clone finds it again; without it, mypy takes 48 s instead of 1.
export MYPY_CACHE_DIR ?= $(or $(TPU_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tpu-pulumi)/mypy

.DEFAULT_GOAL := help
.PHONY: help doctor setup test prove lint rehearse plan preview preflight publish up down settle recover lock docs site setup-test

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile
	@echo "  variables: ENV=dev|prod (Pulumi.<env>.yaml)   SCENARIO=$(subst $(space),|,$(SCENARIOS))   CONFIG=tiny.toml   SLICE=v6e-16   LAYER=$(subst $(space),|,$(sort tpu $(patsubst infra/layers/%/Pulumi.yaml,%,$(wildcard infra/layers/*/Pulumi.yaml))))   YES=1   PYTHON=python3.12"

doctor: ## what is here and what is missing, with a fix for each miss
	@$(PYTHON) -m infra.doctor.machine

setup: ## install all that the other targets need (they call it themselves)
	@tools/setup.sh

setup-test: ## install what `make test` needs beside that
	@tools/setup.sh system python pulumi plugins gcsfuse host manifests site

test: setup-test ## lint, and run the tests of every day (no cloud account; some need root)
	@# Lint takes the core that is free at the beginning and at the end.
	@$(MAKE) --no-print-directory lint & \
	python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder; tests=$$?; \
	wait $$! || { echo "make test: lint failed, see above" >&2; exit 1; }; exit $$tests

prove: setup ## every proof, about 7 hours: kills, faults, mutants, roles, grants, all scenarios (python -m tests.proofs -h: each, with its time)
	@tools/setup.sh manifests kubernetes queue-previous spark parity checkov mutants wandb >/dev/null
	@# Controllers that wait too long for a processor lose their leases: two control planes at a time.
	python -m pytest -m prove -n 2 --dist loadfile --no-loadscope-reorder
	python -m tests.proofs saves
	python -m tests.proofs extractions
	python -m tests.proofs preprocess
	python -m tests.proofs matrix
	python -m tests.proofs kills
	python -m tests.proofs settings
	python -m tests.proofs mutants
	python -m tests.proofs roles
	python -m tests.proofs grants
	for scenario in $(filter-out default,$(SCENARIOS)); do python -m cli rehearsal run $$scenario || exit; done
	python -m tests.proofs updates
	python -m tests.proofs changes
	python -m tests.proofs slurm-scale
	python -m tests.proofs slurm-figures
	python -m tests.proofs runs

lint: setup-test ## ruff, mypy --strict, shellcheck, and that the locks are current
	ruff check .
	ruff check --preview --select DOC102 . # docstrings name no parameter that doesn't exist
	ruff format --check .
	mypy
	lint-imports --no-logo
	git ls-files -co --exclude-standard '*.sh' .ci/run | xargs shellcheck
	tools/lock.sh --check

rehearse: setup ## run the whole scenario on this machine against an emulated Google Cloud (root)
	python -m cli rehearsal run $(SCENARIO)

plan: setup ## what each stack of ENV would change, and what it costs; nothing is created
	tpu plan $(ENV)

preview: plan ## the same: every stack's preview, and its price per hour, day and month

preflight: setup ## whether CONFIG fits SLICE, how fast, at what price; no TPU is needed
	tpu preflight $(CONFIG) --slice $(SLICE)

publish: setup ## build the bundle that hosts install and put it into the bucket of ENV
	tpu publish $(ENV)

up: setup ## bring ENV up: stacks, the first bundle, slices (asks once; YES=1: never)
	tpu up $(ENV) $(if $(YES),--yes)

down: setup ## take the slices of ENV down, and nothing else (LAYER=NAME: that layer; asks once; YES=1: never)
	tpu down $(ENV) $(LAYER) $(if $(YES),--yes)

settle: setup ## after a killed pulumi: put its lock aside and import what it made, in all layers of ENV
	tpu infra settle $(ENV)

recover: setup ## recreate what Google preempted of ENV, and nothing else (asks; YES=1: never)
	tpu recover $(ENV) $(if $(YES),--yes)

lock: setup ## resolve pyproject.toml again into the hash-locked requirement files
	tools/lock.sh

docs: setup ## write the generated blocks of the documentation again
	python -m tools.blocks

site: setup ## make a site of docs/ in site/, by mkdocs-material
	"$$(tools/setup.sh site | tail -n 1)" build --strict --quiet
