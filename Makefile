# `make run` and `make test` are all one needs; both set up their own environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: run test test-gpu bench format docs clean

run: $(VENV)/.measure
	$(BIN)/decodegap measure

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

test-gpu: $(VENV)/.test
	$(BIN)/pytest -m gpu

bench: $(VENV)/.measure
	$(BIN)/python -m benchmarks.overheads

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.measure
	$(BIN)/python -m decodegap.report.schema > docs/record_schema.md

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.measure: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) --editable '.[measure]'
	touch $@

$(VENV)/.test: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) --editable '.[test]'
	touch $@ $(VENV)/.measure
