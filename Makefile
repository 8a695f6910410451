PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNTIME := .venv-runtime
LOWEST := .venv-lowest
# Each process takes up to 2 GB. Neighbouring tests share fixtures, so they stay together.
ALL_TESTS := -m "" -n logical --maxprocesses 4 --dist worksteal

.PHONY: test test-arm test-container lint coverage docs dist dist-all lowest demo demo-studio demo-train demo-clicks notebooks qgis-plugin clean

# Everything that a change must pass: install, lint, types, layering, all tests (the slow ones too), a process per core.
# At its end are the tests that cost most. In one process: PYTEST_ARGS="-n 0".
test: lint
	$(BIN)/python -m pytest $(ALL_TESTS) --durations=12 $(PYTEST_ARGS)

# Maps on an emulated Raspberry Pi 4, compared with those of this machine. Downloads 100 MB on Debian, once; skipped
# with a word elsewhere. About two minutes.
test-arm: $(VENV)/installed
	$(BIN)/python tests/arm.py

# The steps of deploy/Dockerfile in fresh Debian roots, without Docker. Needs root and debootstrap; skipped with a word
# elsewhere. About five minutes.
test-container: $(VENV)/installed
	$(BIN)/python tests/container.py

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests
	$(BIN)/lint-imports

# The tests with a report of the lines they reach: on the terminal, and as pages in htmlcov/.
coverage: $(VENV)/installed
	$(BIN)/python -m pytest $(ALL_TESTS) --cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[cpu,train,datasets]" --group dev
	touch $@

# The documentation as pages in site/, every link checked.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

# Wheel and source archive in dist/, checked, installed from an index on 127.0.0.1 into a new environment, where they map
# the example: with this Python and the newest versions.
dist: $(VENV)/installed
	$(BIN)/python tests/packages.py

# The same with Python 3.11, 3.12 and 3.13, each with the newest and the oldest admitted versions.
dist-all: $(VENV)/installed
	$(BIN)/python tests/packages.py --all

# The tests of mapping with the oldest versions that pyproject.toml admits.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet uv
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--editable ".[cpu]" --group dev
	$(LOWEST)/bin/python -m pytest tests/geotools tests/runtime $(PYTEST_ARGS)

# From nothing to a map in about a minute, without PyTorch. The results are in demo/.
demo: $(RUNTIME)/installed
	mkdir -p demo
	$(RUNTIME)/bin/iic-segment-raster examples/sentinel2.tif demo/map.tif --overwrite --majority 1 --sieve 2000 \
		--polygons demo/map.gpkg --stats demo/areas.csv --preview demo/preview.png --web demo/map.html
	@column -s, -t demo/areas.csv 2>/dev/null || cat demo/areas.csv
	@echo "In demo/: map.html (open it in a browser), map.tif (opens in QGIS with its classes), map.gpkg (polygons), areas.csv, preview.png"

$(RUNTIME)/installed: pyproject.toml
	$(PYTHON) -m venv $(RUNTIME)
	$(RUNTIME)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu,vector]"
	touch $@

# The whole way on the example scene: train without a label, export, map. A few minutes; installs PyTorch.
demo-train: $(VENV)/installed
	mkdir -p demo-train && rm -rf demo-train/runs
	$(BIN)/iic-train rasters examples/scene.tif --classes 6 --runs demo-train/runs --name example
	$(BIN)/iic-export demo-train/runs/example -o demo-train/model.onnx --overwrite
	$(BIN)/iic-segment-raster examples/scene.tif demo-train/map.tif --model demo-train/model.onnx --overwrite \
		--polygons demo-train/map.gpkg --stats demo-train/areas.csv --preview demo-train/preview.png
	@echo "In demo-train/: map.tif, map.gpkg, areas.csv, preview.png, model.onnx; the training report: runs/example/report.html"

# Your own classes by a few clicks on the example scene (docs/own-scene.md): name, map, assess. Without PyTorch.
demo-clicks: $(RUNTIME)/installed
	mkdir -p demo-clicks
	$(RUNTIME)/bin/iic-model name --labels examples/clicks.geojson --scene examples/scene.tif \
		-o demo-clicks/named.onnx --suggest demo-clicks/places.gpkg --overwrite
	$(RUNTIME)/bin/iic-segment-raster examples/scene.tif demo-clicks/map.tif --model demo-clicks/named.onnx --overwrite \
		--preview demo-clicks/preview.png
	$(RUNTIME)/bin/iic-map assess demo-clicks/map.tif examples/samples.geojson --report demo-clicks/report.html --overwrite
	@echo "In demo-clicks/: map.tif, preview.png, report.html, named.onnx; places.gpkg: where to click next"

# The studio on the example scene: teach a map with clicks in the browser. Ctrl-C ends it; what was taught is in demo-studio/.
demo-studio: $(RUNTIME)/installed-studio
	mkdir -p demo-studio
	$(RUNTIME)/bin/iic-studio examples/sentinel2.tif --folder demo-studio

$(RUNTIME)/installed-studio: $(RUNTIME)/installed
	$(RUNTIME)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[cpu,studio]"
	touch $@

# The notebooks under examples/ run again, and saved with their outputs.
notebooks: $(VENV)/installed-notebooks
	$(BIN)/jupyter-execute --inplace examples/*.ipynb

$(VENV)/installed-notebooks: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --group notebooks
	touch $@

# The zip that QGIS installs (Plugins > Manage and Install Plugins > Install from ZIP).
qgis-plugin:
	$(PYTHON) runtime/qgis_plugin/pack.py

clean:
	rm -rf $(VENV) $(RUNTIME) $(LOWEST) .arm .container site htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis
