PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: qgis-plugin test lint demo clean

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

# From an unlabelled scene to a map: train for half a minute, export, map. The results are in demo/.
demo: $(VENV)/installed
	mkdir -p demo && rm -rf demo/runs
	$(BIN)/iic-train rasters examples/scene.tif --classes 3 --network local --clusters-a 0 --sub-heads 5 --size 48 --radius 1 \
		--batch 16 --lr 4e-3 --epochs 8 --steps 60 --runs demo/runs --name example
	$(BIN)/iic-export demo/runs/example -o demo/model.onnx --overwrite
	$(BIN)/iic-segment-raster examples/scene.tif demo/map.tif --model demo/model.onnx --overwrite \
		--polygons demo/map.gpkg --stats demo/areas.csv --preview demo/preview.png
	@echo "demo/map.tif, demo/map.gpkg, demo/areas.csv, demo/preview.png; the training report: demo/runs/example/report.html"

# The zip that QGIS installs (Plugins > Manage and Install Plugins > Install from ZIP).
qgis-plugin:
	$(PYTHON) runtime/qgis_plugin/pack.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
