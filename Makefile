# Every target sets itself up: Python 3.11 or newer and make are enough.

# The first Python that will do; `make test PYTHON=/path/to/python3` names another.
names = python3 python3.13 python3.12 python3.11 python3.14
usable = $(shell $(1) -c 'import ensurepip, sys; \
           assert (3, 11) <= sys.version_info < $(before)' 2>/dev/null && echo $(1))
PYTHON ?= $(firstword $(foreach name,$(names),$(call usable,$(name))) python3)
before = (4,)
.venv-oldest/ready: before = (3, 14)  # where the wheels of those versions end

export PIP_DISABLE_PIP_VERSION_CHECK = 1
# uv does not compile modules: the first process that imports one stores its bytecode.
unexport PYTHONDONTWRITEBYTECODE

# Three processes, a file of tests in one: most of their time is compilation, on one core, and
# some of it is waiting for other processes; four take as long. In the order of tests/conftest.py,
# the longest files first.
TOGETHER = --numprocesses 3 --dist loadfile --no-loadscope-reorder

# What `make check` runs: about a minute on two cores.
CHECK = tests/test_house.py tests/envs_jax/classic_control tests/sebulba/test_cores.py \
  tests/sebulba/test_transport.py \
  $(addprefix tests/podracer/,agents/test_impala.py checkpoints/test_damage.py launch/test_commands.py \
  learning/test_gradients.py learning/test_losses.py learning/test_optimizers.py \
  metrics/test_episodes.py parallel runs/test_run_folder.py runs/test_sinks.py \
  transformations/test_history.py)

# What `make test-slow` runs with plain JAX too, without our kernels.
LEARNERS = tests/anakin/test_learning.py tests/anakin/test_training.py \
  tests/sebulba/test_learning.py \
  $(addprefix tests/podracer/,agents learning rules transformations)

# Where the tests of what depends on the version of jax are: collecting all files takes twice as long.
CORE = -m "core and not slow" $(sort $(shell grep -rl --include='test_*.py' 'mark\.core' tests))

# What `make test-libraries` installs, one after another.
LIBRARIES = brax craftax gymnax jumanji kinetix navix playground xland

.PHONY: help demo check test test-slow test-oldest test-newest test-libraries test-tpu lint docs release clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /make \1 - /p' Makefile

demo: .venv/ready  ## watch agents learn, in both architectures
	.venv/bin/anakin train --preset small --env catch --run runs/demo-catch --overwrite
	.venv/bin/anakin train --preset small --env cartpole --run runs/demo-cartpole --overwrite
	.venv/bin/anakin train --agent ppo --preset continuous --env pendulum \
	  --total-steps 300000 --run runs/demo-pendulum --overwrite
	.venv/bin/sebulba train --preset small --env CartPole-v1 --run runs/demo-envpool --overwrite
	.venv/bin/sebulba train --preset impala --env Pong-v5 --total-steps 40000 \
	  --run runs/demo-pong --overwrite
	@echo "The learning curves: curve.png in runs/demo-catch, runs/demo-cartpole,"
	@echo "runs/demo-pendulum, runs/demo-envpool and runs/demo-pong (which needs millions"
	@echo "of steps to learn)"

check: lint  ## lint, the house rules and the fast core tests: a minute
	@.venv/bin/pytest -q $(TOGETHER) $(CHECK)

test: .venv/ready  ## the tests that every change must pass; of examples, those that changed
	@cat .venv/lasted 2>/dev/null || echo "20 to 30 minutes on two cores, the first time"
	@start=$$(date +%s); .venv/bin/pytest -q $(TOGETHER) --changed --durations 5 -m "not slow" \
	  && echo "The last time: $$(( ($$(date +%s) - start) / 60 )) minutes" >.venv/lasted

test-slow: .venv/ready .venv-tpu/ready  ## the others: more cases and longer programs, before a release
	@.venv/bin/pytest -q $(TOGETHER) -m "(slow or shows) and not tpu"
	@PODRACER_TESTS_OPTIMIZED=1 .venv/bin/pytest -q tests/jax_internals
	@PODRACER_KERNELS=off .venv/bin/pytest -q $(TOGETHER) $(LEARNERS)
	@.venv-tpu/bin/pytest -q tests/podracer/plan/tpu -m "slow"

test-oldest: .venv-oldest/ready  ## the core tests on the oldest jax that we support
	@.venv-oldest/bin/pytest -q $(TOGETHER) $(CORE)

test-newest: .venv-newest/ready  ## the same on the newest releases for this Python, before a release
	@.venv-newest/bin/pytest -q $(TOGETHER) $(CORE)

test-libraries: .venv/ready  ## whether agents train in each library's environments, and policies become ONNX, in newest releases
	@for x in $(LIBRARIES); do \
	  $(MAKE) --no-print-directory .venv-library PACKAGES="--upgrade --editable .[$$x] --group dev" && \
	  .venv-library/bin/pytest -q tests/envs_jax/adapters -k "real and $$x" || failed="$$failed $$x"; \
	done; \
	$(MAKE) --no-print-directory .venv-library PACKAGES="--upgrade --editable .[onnx] --group dev" && \
	.venv-library/bin/pytest -q tests/podracer/trained/test_exporting.py || failed="$$failed onnx"; \
	test -z "$$failed" || { echo "with their newest releases these fail:$$failed"; exit 1; }

.PHONY: .venv-library
.venv-library:
	@rm -rf $@ && .venv/bin/uv venv --quiet --python $(PYTHON) $@
	@.venv/bin/uv pip install --quiet --python $@ $(PACKAGES)

test-tpu: .venv-tpu/ready  ## what the compilers of TPUs and GPUs make of our programs
	@.venv-tpu/bin/pytest -q --numprocesses 2 --dist worksteal tests/podracer/plan/tpu \
	  -m "not slow"

lint: .venv/ready  ## format, style, spelling, and the types of the public contract
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@git ls-files -z | xargs -0 .venv/bin/codespell
	@.venv/bin/mypy

docs: .venv-docs/ready  ## the documentation as a site: site/index.html
	@.venv-docs/bin/mkdocs build --strict

release:  ## before a release: the repository's address is set everywhere; test-slow, test-newest
	@! git grep --line-number --only-matching YOUR_ACCOUNT/podracer pyproject.toml colab || \
	  { echo 'put the address of the repository there: see CONTRIBUTING.md'; exit 1; }
	@$(MAKE) test-slow test-newest

clean:  ## remove the environments, caches and site, keep the runs
	rm -rf .venv .venv-oldest .venv-library .venv-newest .venv-tpu .venv-docs site \
	  .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# An environment of exactly the pinned versions; `ready` is written when it is complete.
.venv/ready: requirements/tested.txt
.venv-oldest/ready: requirements/oldest.txt
.venv-tpu/ready: requirements/tpu.txt
.venv-docs/ready: requirements/docs.txt
.venv-docs/ready: podracer =  # its tools read our files and import nothing
# pip knows groups since 25.1.
.venv-newest/ready: packages = --upgrade pip
.venv-newest/ready: podracer = --only-binary :all: --group dev --editable .
packages = --only-binary :all: --requirement $(filter %.txt,$^)
podracer = --no-deps --no-build-isolation --editable .
# uv takes seconds where pip takes minutes. It ignores pip's configuration: where it fails, pip
# installs.
install = $*/bin/uv pip install --quiet --python $* $(1) || $*/bin/pip install --quiet $(1)
%/ready: pyproject.toml
	$(if $(call usable,$(PYTHON)),,$(error podracer needs Python 3.11 or newer with venv \
	  (test-oldest: 3.13 at most); name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3))
	$(PYTHON) -m venv $*
	-$*/bin/pip install --quiet --only-binary :all: uv
	$(call install,$(packages))
	$(if $(podracer),$(call install,$(podracer)))
	@touch $@
