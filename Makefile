# Every target makes what it needs: `make demo` or `make test` is enough in a fresh clone.
# PYTHON=python3.11 make test   chooses the interpreter (3.11 or 3.12).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
GL := $(VENV)/.gl
BROWSER := $(VENV)/.browser
RAY := $(VENV)/.ray
TRITON := $(VENV)/.triton

EGL_PACKAGES := libegl1 libegl-mesa0 libgl1-mesa-dri
OSMESA_PACKAGES := libosmesa6
BROWSER_PACKAGES := chromium chromium-driver
# Draws one picture; fails where no OpenGL library works.
DRAW := $(BIN)/python -c 'from ctrlformer.envs import pixel_fingerprint; pixel_fingerprint()'
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

# One thread per worker: two workers with two threads each would fight over two cores.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: venv gl browser test test-slow test-faults soak demo bench results lint types contracts audit format clean

venv: $(INSTALLED)
gl: $(GL)
browser: $(BROWSER)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(BIN)/python pyproject.toml constraints.txt
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,tensorboard]' </dev/null
	@touch $@

# What is there, else Debian's packages where they may be installed, else the libraries in a wheel.
$(GL): $(INSTALLED)
	@if $(DRAW) >/dev/null 2>&1; then :; else \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing OpenGL packages ..."; \
	    apt-get update -qq </dev/null >/dev/null; \
	    $(APT_INSTALL) $(EGL_PACKAGES) </dev/null >/dev/null; \
	    $(DRAW) >/dev/null 2>&1 || $(APT_INSTALL) $(OSMESA_PACKAGES) </dev/null >/dev/null; \
	  fi; \
	  $(DRAW) >/dev/null 2>&1 || { \
	    echo "installing the wheel lavavu-osmesa ..."; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps lavavu-osmesa </dev/null; }; \
	  $(DRAW) >/dev/null || { echo "no OpenGL: '$(BIN)/ctrlformer doctor' tells more"; exit 2; }; \
	fi
	@touch $@

# Reports are tested in Chromium; where it cannot be installed, those tests are skipped with a word.
$(BROWSER): $(INSTALLED)
	@if ! command -v chromedriver >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing Chromium ..."; \
	  apt-get update -qq </dev/null >/dev/null; \
	  $(APT_INSTALL) $(BROWSER_PACKAGES) </dev/null >/dev/null; \
	fi
	@touch $@

# CUDA builds of torch bring it, CPU builds do not: 200 MB that only its own tests need. Without it they are skipped.
$(TRITON): $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt triton </dev/null \
	  || echo "triton cannot be installed here: its tests are skipped"
	@touch $@

test: $(GL) $(BROWSER) $(TRITON)
	$(PYTEST)

# Without it the tests of sweeps on Ray are skipped.
$(RAY): $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray]' </dev/null \
	  || echo "ray cannot be installed here: its tests are skipped"
	@touch $@

test-slow: $(GL) $(RAY)
	$(PYTEST) -m slow

# Every case of every fault, and the table of docs/reliability.md from what was found.
FAULTS := $(VENV)/faults.jsonl
PUBLISH := $(BIN)/python tests/faults/tally.py $(FAULTS) results/faults.jsonl docs/reliability.md
test-faults: $(GL) $(BROWSER)
	@rm -f $(FAULTS)
	$(PYTEST) tests/faults -m fault --faults-out $(FAULTS)
	$(PUBLISH)

# Two hours of training, watched: its memory must not grow.
soak: $(GL)
	@rm -f $(FAULTS)
	$(BIN)/python tests/faults/soak.py 2 $(FAULTS)
	$(PUBLISH)

demo: $(GL)
	$(BIN)/ctrlformer demo

# The speed table, side by side with other libraries; `make bench BENCH='--quick --json FILE'` passes options on.
bench: $(GL)
	$(BIN)/python -m benchmarks $(BENCH)

# docs/results.md, and the tables of README.md and docs/performance.md, from the files under results/.
results: $(INSTALLED)
	$(BIN)/python docs/generate_results.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	$(BIN)/mypy

contracts: $(INSTALLED)
	$(BIN)/lint-imports

# Known vulnerabilities of the versions in constraints.txt; needs the network, and says so where there is none.
audit: $(INSTALLED)
	@$(BIN)/python .ci/audit.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
