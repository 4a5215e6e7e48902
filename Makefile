# `make demo` and `make test` work as the first command on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev

# `make demo` installs what it needs to run; everything else also what tests, examples and the site need.
.PHONY: demo test test-long lint docs docs-serve bench reliability clean

demo: $(READY)  ## sample a wide network on the embedded digits and draw the result
	rm -rf runs/demo
	$(BIN)/widebnn demo --out runs/demo

test: $(DEV)  ## all tests but the long ones
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-long: $(DEV)  ## all tests, also those that take long: scikit-learn's suite of checks, more statistics
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "long or not long"

lint: $(DEV)  ## style, types, the order of the stages, and the rule against unsafe loading
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/unsafe.py
	$(BIN)/python tools/layers.py

docs: $(DEV)  ## the site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: $(DEV)  ## the site at http://127.0.0.1:8000, rebuilt when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

bench: $(DEV)  ## speed, mixing and growth of cost, beside the published recipe and BlackJAX (about an hour)
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/mixing.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/report.py

reliability: $(DEV)  ## kills, damage, hostile files, statistical proof at full size (hours): docs/reliability.md
	mkdir -p build && rm -f build/reliability.jsonl
	WIDEBNN_RELIABILITY=build/reliability.jsonl WIDEBNN_RELIABILITY_SCALE=full \
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m long tests/reliability; status=$$?; \
	$(BIN)/python tests/reliability/summary.py build/reliability.jsonl && exit $$status

clean:
	rm -rf $(VENV) build runs

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $(READY)

$(DEV): $(READY) requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $(DEV)
