# `make demo` and `make test` work as the first command on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-long lint docs bench reliability clean

demo: $(READY)  ## sample a wide network on the embedded digits and draw the result
	rm -rf runs/demo
	$(BIN)/widebnn demo --out runs/demo

test: $(READY)  ## all tests but the long ones
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-long: $(READY)  ## all tests, also those that take long: scikit-learn's suite of checks, more statistics
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "long or not long"

lint: $(READY)  ## style, types, the order of the stages, and the rule against unsafe loading
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/unsafe.py
	$(BIN)/python tools/layers.py

docs: $(READY)  ## the API reference, in build/api
	$(BIN)/python docs/reference/build.py build/api

bench: $(READY)  ## speed, mixing and growth of cost, beside the published recipe and BlackJAX (about an hour)
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/mixing.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/report.py

reliability: $(READY)  ## kills, damage, hostile files, statistical proof at full size (hours): docs/reliability.md
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
