# Each target makes what it needs: a virtual environment in .venv, the C extensions, its extras.
# The second run of a target starts at once; a changed C file or pyproject.toml is built again.

PYTHON ?= python3
VENV ?= .venv
BENCH ?= messaging rtree
PYTEST_ARGS ?=
FUZZ ?=
FUZZ_SECONDS ?= 600
SANITIZED ?=
SOAK_SECONDS ?= 60
RDMA ?= if-installed
TORTURE_SECONDS ?= 10

py := $(VENV)/bin/python
stamps := $(VENV)/.stamps
pip := $(py) -m pip --disable-pip-version-check install --quiet
native := $(wildcard $(foreach d,l5/native catfish_app/native,$(d)/*.c $(d)/*.h $(d)/build.py))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
.PHONY: help demo test test-rdma test-sanitized soak torture fuzz bench lint format native-check docs wheel clean distclean
.SECONDARY:

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

demo: $(stamps)/installed $(stamps)/extra-demo ## serve the world's coasts and borders, search them, draw the map
	$(py) -m catfish_app.demo

test: $(stamps)/installed $(stamps)/extra-test ## run all tests (PYTEST_ARGS='-k ring' for some)
	$(py) -m pytest $(PYTEST_ARGS)
	$(if $(filter if-installed,$(RDMA)),$(if $(PYTEST_ARGS),,$(py) scripts/test_rdma.py --if-installed))

test-rdma: $(stamps)/installed $(stamps)/extra-test ## run the RDMA tests in emulated machines (needs QEMU)
	$(py) scripts/test_rdma.py

fuzz: $(stamps)/installed $(stamps)/extra-fuzz ## fuzz what reads a peer's bytes (FUZZ=url, FUZZ_SECONDS=600 for all)
	$(py) -m fuzz $(FUZZ) --seconds $(FUZZ_SECONDS)

test-sanitized: $(stamps)/tools $(stamps)/extra-test ## run a part of the tests under sanitizers (SANITIZED=--full for all)
	$(py) scripts/sanitized.py $(SANITIZED)

soak: $(stamps)/installed $(stamps)/extra-test ## 32 processes, killed at random (SOAK_SECONDS=3600)
	$(py) -m tests.soak --seconds $(SOAK_SECONDS) --json build/soak.json

torture: $(stamps)/installed $(stamps)/extra-test ## read versioned pages while they are rewritten (TORTURE_SECONDS=10 a transport)
	$(py) -m tests.pages.torture --seconds $(TORTURE_SECONDS)

bench: $(stamps)/installed $(stamps)/extra-bench ## run the benchmarks (BENCH=messaging for one); results in build/bench
	@mkdir -p build/bench
	@set -e; for case in $(BENCH); do \
	    echo "$(py) -m benchmarks $$case"; \
	    $(py) -m benchmarks $$case --json build/bench/$$case.jsonl; done

lint: $(stamps)/installed $(stamps)/extra-test $(stamps)/extra-lint ## check style, formatting and types
	$(py) -m ruff check .
	$(py) -m ruff format --check .
	$(py) -m pyright --warnings
	PATH="$(CURDIR)/.venv/bin:$$PATH" PYTHONPATH=. $(py) -m pyright --verifytypes l5 --ignoreexternal

format: $(stamps)/extra-lint ## let ruff format and mend what it can
	$(py) -m ruff check --fix .
	$(py) -m ruff format .

native-check: $(stamps)/tools ## compile the C with every compiler here, warnings as errors
	$(py) scripts/check_native.py

docs: $(stamps)/installed $(stamps)/extra-catfish $(stamps)/extra-docs ## build the documentation into docs/_build/html
	$(py) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

wheel: $(stamps)/tools ## build a wheel for this Python into dist
	$(py) -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls -1 dist/*.whl

clean: ## remove what was built; keep .venv
	rm -rf build dist wheelhouse docs/_build *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -f l5/_native*.so l5/_native.c catfish_app/_native*.so catfish_app/_native.c
	rm -f $(stamps)/installed
	find l5 catfish_app tests benchmarks examples scripts docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	find l5 catfish_app -name '*.o' -delete

distclean: clean ## remove .venv as well
	rm -rf $(VENV)

$(py):
	@scripts/doctor.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)

$(stamps)/tools: pyproject.toml | $(py)
	@mkdir -p $(stamps)
	$(pip) --upgrade 'setuptools>=77' 'cffi>=1.17' wheel
	@touch $@

$(stamps)/installed: $(stamps)/tools setup.py $(native)
	@scripts/doctor.sh $(py)
	$(pip) --editable . --no-build-isolation
	@touch $@

# An extra is installed without building the project again.
$(stamps)/extra-%: pyproject.toml scripts/requirements.py $(stamps)/tools
	$(py) scripts/requirements.py $* > $(stamps)/$*.txt
	$(pip) --requirement $(stamps)/$*.txt
	@touch $@
