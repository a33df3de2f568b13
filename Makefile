# `make run` and `make test` install what they need first: system libraries for Qt, then a virtual environment.
# PYTHON=python3.12 chooses another interpreter, ARGS="..." is handed to precgui or pytest: `make test ARGS="-n0 -k name"`.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
LOCK := packaging/constraints.txt
PIP := $(BIN)/python -m pip --disable-pip-version-check
QUIET := $(if $(CI),-qq)
SCREEN := offscreen $(if $(DISPLAY),x11) $(if $(WAYLAND_DISPLAY),wayland)

# One pytest process per core, as far as the memory allows (tests/conftest.py); the tests of a file stay together.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 2
# Every worker, and every process that a test starts, would compile all modules anew without the bytecode of the last.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest $(PARALLEL)

# What runs differently on x86 processors that have AVX2 and no more: matrix products, integers, compiled rounding.
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
NUMERIC := tests/formats $(addprefix tests/engine/,emulation precisions qat quantize \
	test_census.py test_execution.py test_instruction_sets.py)

# What trains, waits for processes or judges many imagined studies is left out.
QUICK := tests/config tests/test_layers.py tests/formats tests/hardware tests/lint tests/planner \
	$(filter-out %/test_damage.py %/test_writer.py %/test_bombs.py %/test_what_if_of_a_run.py, \
	$(wildcard $(addprefix tests/runs/,test_*.py file/test_*.py speedup/test_*.py tensorboard/test_*.py tensors/test_*.py)))

# What runs differently where libraries, fonts, compilers or Python are others: a fourth of the time of all.
MACHINE := tests/cli tests/gui tests/hardware tests/process $(addprefix tests/engine/,profile test_compile.py) \
	$(wildcard tests/test_*.py)

# The rooms that these tests are about, and the share of their lines that may not fall.
COVERED := $(addprefix --cov=precgui.,config formats hardware lint planner runs) --cov-report= --cov-fail-under=80

.DEFAULT_GOAL := help
.PHONY: help run test quick pretended places layout faults test-avx2 test-machine gpu check format bench constraints words digits examples screenshots sizes wheel clean

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

run: $(READY) ## start the application
	@packaging/system-libraries.sh $(SCREEN)
	@$(BIN)/precgui $(ARGS) || { status=$$?; [ $$status -eq 2 ] || exit $$status; } # 2: it has said why in one sentence

test: $(READY) ## run all tests
	@packaging/system-libraries.sh offscreen
	@$(PYTEST) $(ARGS)

gpu: ## measure all that only an NVIDIA GPU can show, in 8 minutes, into GPU_OUT or gpu-report/
	@$(if $(wildcard $(READY)),$(BIN)/python,python3) benchmarks/gpu_report.py $(ARGS)

pretended: $(READY) ## run all that a GPU would do on a pretended one, in some ten minutes
	@PRETENDED_LONG=1 $(PYTEST) tests/pretended $(ARGS)

places: $(READY) ## run the tests of places with a hundred cut links
	@PLACES_LONG=1 $(PYTEST) tests/places $(ARGS)

layout: $(READY) ## compare all views in Chinese with English, in three sizes and both themes, in some minutes
	@LAYOUT_LONG=1 $(BIN)/pytest -n0 tests/gui/test_translated_layout.py $(ARGS)

faults: $(READY) ## judge every planted fault with each seed and way of recording, for the tests take turns
	@FAULTS_LONG=1 $(PYTEST) tests/faults $(ARGS)

quick: $(READY) ## run the tests that need no training, in about a minute
	@packaging/system-libraries.sh offscreen
	@$(PYTEST) $(QUICK) $(ARGS)

test-avx2: $(READY) ## run the numeric tests as on a processor without AVX-512 and VNNI
	@$(AVX2) $(PYTEST) $(NUMERIC) $(ARGS)

test-machine: $(READY) ## run the tests of what depends on the machine
	@packaging/system-libraries.sh offscreen
	@$(PYTEST) $(MACHINE) $(ARGS)

check: $(READY) ## style, types, layers, pictures older than their sources, and the lines that the quick tests run
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python packaging/pictures.py
	@$(MAKE) --no-print-directory quick ARGS="-q $(COVERED)"
	@echo "The quick tests run $$($(BIN)/coverage report --format=total) % of the lines of the rooms that they are about."

format: $(READY) ## put the source into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## run the benchmarks, each prints its figures
	@packaging/system-libraries.sh offscreen
	@for benchmark in benchmarks/*.py; do echo "== $$benchmark"; $(BIN)/python $$benchmark || exit; done

constraints: $(READY) ## choose the newest versions that fit and write them down with their hashes
	$(BIN)/python packaging/pin_versions.py $(ARGS)

words: $(READY) ## bring the catalogues of translations up to date with the source, and say what is missing
	$(BIN)/python packaging/update_words.py $(ARGS)

digits: $(READY) ## write the bundled data set again
	$(BIN)/python packaging/build_digits.py

examples: $(READY) ## train the bundled examples again, in ten minutes
	$(BIN)/python packaging/build_examples.py

screenshots: $(READY) ## take the pictures of the documents again; ARGS=--stale, those that are old
	@packaging/system-libraries.sh offscreen
	$(BIN)/python packaging/screenshots.py docs/images $(ARGS)

sizes: $(READY) ## count the files and lines of each package again, in docs/architecture.md
	$(BIN)/python packaging/package_sizes.py

wheel: $(READY) ## build the wheel into dist/
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean: ## remove the virtual environment and everything that was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@packaging/make-environment.sh $(VENV)

# The lock is installed as it is (--no-deps): for a package with an extra, pip would ask for its newest version instead.
# The package comes last and alone: its dependencies are all there, at the versions of the lock file.
$(READY): $(LOCK) pyproject.toml $(BIN)/python
	@echo "Installing Python packages into $(VENV); the first time some 3 GB, most of it torch."
	@$(PIP) install $(QUIET) --no-deps --require-hashes -r $(LOCK)
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
