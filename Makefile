# Each target makes .venv first if it is missing or stale, and reuses it afterwards.
.PHONY: help run test test-faults lint lab finale doctor venv lock clean
.DEFAULT_GOAL := help

PY := .venv/bin/python

help:
	@echo "make run      set up, then train on two emulated machines (about a minute once installed)"
	@echo "make test     set up, then run all tests"
	@echo "make test-faults   set up, then break jobs in every way we know; writes docs/faults.md"
	@echo "make lab      set up, then open the notebooks in JupyterLab"
	@echo "make finale   set up, then the scripted multi-machine run"
	@echo "make doctor   set up, then check this computer and say what to change"
	@echo "make lint     ruff over code and notebooks"
	@echo "make lock     resolve requirements.lock again from pyproject.toml (needs uv), and environment.yml from it"
	@echo "make clean    remove .venv, caches and generated data; runs/ is kept"

venv:
	@sh scripts/make_venv.sh

run: venv
	$(PY) -m tutorial_lib train --dataset synthetic-products --emulate 2

test: venv lint
	$(PY) -m pytest

test-faults: venv
	FAULT_TABLE=docs/faults.md $(PY) -m pytest -m "faults or not faults" \
	  tests/test_faults.py tests/test_fault_signals.py tests/test_ssh.py tests/test_resume.py tests/test_many_launches.py

lint: venv
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

lab: venv
	$(PY) -m jupyter lab --notebook-dir=notebooks $(shell test "$$(id -u)" -ne 0 || echo --allow-root)

finale: venv
	$(PY) -m tutorial_lib finale

doctor: venv
	$(PY) -m tutorial_lib doctor --emulate 2

lock: venv
	uv pip compile --universal --fork-strategy fewest --python-version 3.10 --generate-hashes \
	  --no-emit-index-url --no-header --extra dev --upgrade pyproject.toml -o requirements.lock
	$(PY) scripts/make_environment_yml.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache data/cache data/partitions
