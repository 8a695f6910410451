PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := .venv-runtime

.PHONY: test lint demo demo-train qgis-plugin clean

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

# From nothing to a map in about a minute, without PyTorch. The results are in demo/.
demo: $(RUNTIME)/installed
	mkdir -p demo
	$(RUNTIME)/bin/iic-segment-raster examples/scene.tif demo/map.tif --overwrite \
		--polygons demo/map.gpkg --stats demo/areas.csv --preview demo/preview.png
	@column -s, -t demo/areas.csv 2>/dev/null || cat demo/areas.csv
	@echo "In demo/: map.tif (opens in QGIS with its classes), map.gpkg (polygons), areas.csv, preview.png"

$(RUNTIME)/installed: pyproject.toml
	$(PYTHON) -m venv $(RUNTIME)
	$(RUNTIME)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu]"
	touch $@

# The whole way on the example scene: train without a label, export, map. A few minutes; installs PyTorch.
demo-train: $(VENV)/installed
	mkdir -p demo-train && rm -rf demo-train/runs
	$(BIN)/iic-train rasters examples/scene.tif --classes 3 --network local --clusters-a 0 --sub-heads 5 --size 48 --radius 1 \
		--batch 16 --lr 4e-3 --epochs 8 --steps 60 --runs demo-train/runs --name example
	$(BIN)/iic-export demo-train/runs/example -o demo-train/model.onnx --overwrite
	$(BIN)/iic-segment-raster examples/scene.tif demo-train/map.tif --model demo-train/model.onnx --overwrite \
		--polygons demo-train/map.gpkg --stats demo-train/areas.csv --preview demo-train/preview.png
	@echo "In demo-train/: map.tif, map.gpkg, areas.csv, preview.png, model.onnx; the training report: runs/example/report.html"

# The zip that QGIS installs (Plugins > Manage and Install Plugins > Install from ZIP).
qgis-plugin:
	$(PYTHON) runtime/qgis_plugin/pack.py

clean:
	rm -rf $(VENV) $(RUNTIME) .pytest_cache .mypy_cache .ruff_cache .hypothesis
