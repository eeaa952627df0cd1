# SPDX-License-Identifier: Apache-2.0
# Every target works on a machine with nothing but Python >= 3.10: the first one makes .venv.

PYTHON ?= python3
PLOT ?= ladder.png
PYTEST_WORKERS ?= auto

BIN := .venv/bin
INSTALLED := .venv/.installed
SLOW := tests/emulator tests/kernels
# A file is of one worker, which loads its kernels once; files are handed out in the order of conftest.
ORDERED := --dist loadfile --no-loadscope-reorder
# What one worker or command has compiled the others read, also where the shell says otherwise.
export PYTHONDONTWRITEBYTECODE :=
HEADERS := find src -name '*.cuh' -print0

.DEFAULT_GOAL := help
.PHONY: help demo test every-test quick quick-test lint format mutations exhaustive gpu-test matrix models engines emulator-alone clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(INSTALLED) ## climb the ladder: checked and timed on a GPU, inspected and emulated without one
	$(BIN)/flash-attention ladder run --plot $(PLOT)

test: $(INSTALLED) ## lint, types, tests, side by side: mypy has but one process
	$(MAKE) --no-print-directory -j2 lint every-test

every-test: $(INSTALLED)
	$(BIN)/pytest -n $(PYTEST_WORKERS) $(ORDERED)

quick: $(INSTALLED) ## the inner loop: lint, types, and the tests that are quick
	$(MAKE) --no-print-directory -j2 lint quick-test

quick-test: $(INSTALLED)
	$(BIN)/pytest -n $(PYTEST_WORKERS) $(ORDERED) -m "not slow" $(SLOW:%=--ignore=%)

lint: $(INSTALLED) ## ruff, mypy --strict, import-linter, clang-format; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(HEADERS) | xargs -0 -r $(BIN)/clang-format --dry-run -Werror

format: $(INSTALLED) ## rewrite Python and CUDA sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(HEADERS) | xargs -0 -r $(BIN)/clang-format -i

mutations: $(INSTALLED) ## plant every mistake of the tables in the kernels, and see that each is caught
	$(BIN)/pytest -n $(PYTEST_WORKERS) $(ORDERED) -m mutations

exhaustive: $(INSTALLED) ## the cases that `make test` leaves to others of their kind
	$(BIN)/pytest -n $(PYTEST_WORKERS) $(ORDERED) -m exhaustive

gpu-test: $(INSTALLED) ## only the tests that need a GPU
	$(BIN)/pytest -m gpu

matrix: ## the wheel on other Pythons and releases of torch; downloads up to 20 GB, see .ci/matrix
	.ci/matrix

models: ## models of transformers 4.57 and 5 and of diffusers; downloads gigabytes, see .ci/transformers
	.ci/transformers

engines: ## the parameters of the newest vLLM, SGLang and Transformer Engine; downloads a gigabyte, see .ci/engines
	.ci/engines

emulator-alone: ## packages/ptx_emulator in an environment of its own, without torch
	.ci/emulator_alone

clean: ## remove the environment and what the tools left behind
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info packages/*/build packages/*/src/*.egg-info

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation -e '.[all,test,lint]'
	touch $@
