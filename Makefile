PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test lint check clean

# Everything a change must pass: install, lint, types, layering, tests.
test: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[cpu,train]" --group dev
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
