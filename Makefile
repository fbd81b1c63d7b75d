# Every target sets up what it needs in $(VENV) first; `make help` lists them.
# PYTHON=python3.12 picks the interpreter, VENV=folder the place; TEST_JOBS=4 runs that many tests
# of `make test` at a time. On a machine with a GPU and without a network, NO_SETUP=1 sets nothing up
# for test-gpu and bench-gpu, which then run in GPU_PYTHON.

SHELL := /bin/sh
VENV ?= .venv
TEST_JOBS ?= 2
BIN := $(VENV)/bin
# asv describes the machine in a file in HOME; there is no need for one outside of the checkout
ASV = cd benchmarks && HOME="$(abspath benchmarks/.asv)" "$(abspath $(BIN))/asv"
PYTEST := $(BIN)/python -m pytest
# tests at a time have the cores already: more threads of BLAS and OpenMP take them from each other
PYTEST_PARALLEL := OMP_NUM_THREADS=1 $(PYTEST) -q -n $(TEST_JOBS)
# uv has its own names for what the environment tells pip
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef NO_SETUP
GPU_PYTHON ?= python3
else
GPU_PYTHON ?= $(BIN)/python
GPU_SETUP := setup
endif
# worker processes find the package by it where it is not installed
GPU_ENV = PYTHONPATH="$(CURDIR)/src:$(CURDIR)/benchmarks$${PYTHONPATH:+:$$PYTHONPATH}"

# What stands on other libraries: their private names, estimators, searches, boosting, joblib's
# backend, containers of rows. A few minutes.
VERSION_TESTS := $(addprefix tests/, \
    test_private_names.py test_array.py test_linalg.py test_progress.py \
    house/test_private.py house/test_sklearn_private.py \
    blocks cluster/test_client.py fleet/test_fleet.py inference \
    inputs/test_arrays.py inputs/test_frames.py inputs/test_joins.py inputs/test_mixing.py \
    inputs/test_missing_values.py inputs/test_polars.py \
    joblib_backend/test_joblib_backend.py joblib_backend/test_joblib_callbacks.py \
    $(addprefix estimators/, test_answers.py test_every_estimator.py test_forests.py \
        test_routing.py test_spectral.py) \
    $(addprefix estimators/boosting/, test_lightgbm.py test_sklearn_checks.py test_xgboost.py) \
    $(addprefix estimators/preparation/, test_compose.py test_encoders.py test_impute.py \
        test_matrix.py test_power_transformer.py test_scalers.py test_target_encoder.py) \
    $(addprefix model_selection/, test_adaptive_search.py test_early_stopping.py \
        test_early_stopping_searches.py test_gpu_search.py test_plot.py test_scored_fits.py \
        test_search.py test_shared_fits.py test_shared_fits_boosters.py \
        test_shared_fits_kernels.py test_shared_fits_neighbors.py test_shared_fits_trees.py))
# what codespell reads; pyproject.toml has the words that it takes for others
PROSE := README.md CONTRIBUTING.md CHANGELOG.md docs examples src
# tests of what dask-ml and notebooks are needed for, which the environment of the others lacks
DOCS_TESTS := tests/house/test_coming_from.py tests/journeys/test_notebook.py
# suites that are run as a user's small rows are too: in one task, or in this process
SMALL_ROWS_TESTS := $(addprefix tests/, test_bad_inputs.py blocks inference inputs metrics)
VERSION_EXTRAS := lightgbm,optuna,plot,ui,xgboost

define test_versions
$(1)/bin/python -c 'import skfleet; skfleet.show_versions()'
OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -q -n $(TEST_JOBS) --dist loadfile -m "not slow and not gpu" $(VERSION_TESTS)
endef

.PHONY: help setup demo test test-fast test-all test-matrix test-kills test-versions test-oldest test-newest test-gpu test-deploy lint format typecheck doctest bench bench-gpu docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(VENV)/.ready-test ## make .venv with everything that demo and test need

demo: setup ## scikit-learn code on a fleet of two worker processes, next to scikit-learn
	@$(BIN)/python examples/quickstart.py

test: setup lint typecheck doctest ## all checks and tests but the slow ones and those for a GPU
	$(PYTEST_PARALLEL) --dist loadfile -m "not slow and not gpu" tests

test-fast: setup ## the first case of each quick test, without other processes, for after each edit
	PYTHONPATH=tests $(PYTEST_PARALLEL) --dist loadfile -p fast_tests -m "not slow and not gpu" tests

test-all: test ## test, then the slow suites: killed workers, memory limits, the peers' own tests
	$(PYTEST_PARALLEL) --dist loadfile -m "slow and not alone and not gpu" tests
	$(PYTEST) -q -m "slow and alone and not gpu" tests
	SKFLEET_SINGLE_TASK=1 $(PYTEST_PARALLEL) --dist loadfile -m "not slow and not gpu" $(SMALL_ROWS_TESTS)
	SKFLEET_ALL_EXAMPLES=1 $(PYTEST_PARALLEL) -m "hypothesis and not slow and not gpu" tests

test-matrix: setup ## transformers in all partitions, containers and engines, two worker processes among them
	SKFLEET_WHOLE_MATRIX=1 $(PYTEST_PARALLEL) tests/estimators/preparation/test_matrix.py

test-kills: setup ## a hundred deaths of ranks and workers in the training of each boosting library
	SKFLEET_KILLS=100 $(PYTEST) -q tests/estimators/boosting/test_kills.py

test-versions: test-oldest test-newest ## a core of the tests with the oldest and with the newest libraries

test-oldest: ## that with the lower bounds of pyproject.toml, in .venv-oldest
	@PYTHON="$(or $(PYTHON),python3.11)" .ci/setup $(VENV)-oldest $(VERSION_EXTRAS) --upgrade --resolution lowest-direct
	@.ci/setup $(VENV)-oldest test-tools
	$(call test_versions,$(VENV)-oldest)

test-newest: ## that with the newest releases and pre-releases, in .venv-newest
	@.ci/setup $(VENV)-newest $(VERSION_EXTRAS) --upgrade --prerelease allow
	@.ci/setup $(VENV)-newest test-tools
	$(call test_versions,$(VENV)-newest)

test-gpu: $(GPU_SETUP) ## the tests that need CuPy and a CUDA device; writes benchmarks/results/gpu-*.json
	$(GPU_ENV) $(GPU_PYTHON) -m pytest -p record_gpu -q -m gpu $(ARGS) tests

test-deploy: ## fits on SLURM, SSH, Dask's commands, and Kubernetes' schemas; installs Debian's packages, as root
	@examples/deploy/install_debian.sh
	@.ci/setup $(VENV)-deploy deploy
	@for trial in slurm_cluster ssh_cluster command_line kube_cluster; do \
	    $(VENV)-deploy/bin/python examples/deploy/$$trial.py || exit 1; done

lint: setup ## format, style and who may import whom; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

format: setup ## reformat, and repair what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

typecheck: setup ## mypy on the rooms whose types are complete
	$(BIN)/mypy

doctest: setup ## the examples in docstrings, README and docs
	$(PYTEST_PARALLEL) --show-capture=no --doctest-modules --doctest-glob='*.md' docs README.md src

bench: $(VENV)/.ready-bench ## the benchmarks, once, in this environment
	@mkdir -p benchmarks/.asv
	@$(ASV) machine --yes >/dev/null
	$(ASV) run --environment existing:same --quick --show-stderr

bench-gpu: $(GPU_SETUP) ## the benchmarks of a CUDA device; ARGS="--quick"; writes benchmarks/results/gpu-bench-*.json
	$(GPU_ENV) $(GPU_PYTHON) benchmarks/gpu.py $(ARGS)

docs: ## the documentation as HTML in docs/_build/html, made in .venv-docs
	@.ci/setup $(VENV)-docs docs
	$(VENV)-docs/bin/codespell $(PROSE)
	OMP_NUM_THREADS=1 $(VENV)-docs/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(VENV)-docs/bin/python docs/_ext/check_pages.py docs/_build/html
	$(VENV)-docs/bin/python -m pytest -q $(DOCS_TESTS)

clean: ## remove what the targets made, .venv included
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-docs $(VENV)-deploy build dist docs/_build docs/auto_examples \
	    docs/contribute/generated docs/reference/generated docs/reference/backreferences \
	    docs/sg_execution_times.rst .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/.asv

# One environment; each extra is installed once, and again when pyproject.toml changed.
$(VENV)/.ready-%: pyproject.toml .ci/setup
	@.ci/setup "$(VENV)" "$*"
	@touch "$@"
