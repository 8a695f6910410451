"""The public names of the four packages: a change here is a change for users, and belongs in the changelog."""

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest

from iic_geotools import UsageError

PUBLIC_NAMES = {
    "iic_geotools": {
        *("DataError", "DeviceError", "IICError", "MissingPackageError", "ModelError", "OutputError"),
        *("SceneError", "TrainingError", "UsageError"),
        *("CatalogueScene", "search_scenes"),
        *("CleanedMap", "clean_map"),
        *("GeoBox", "MapClass", "NODATA", "Progress", "Rect", "SceneInfo", "Tile", "describe"),
        *("Assessment", "Change", "Draw", "ZoneAreas"),
        *("assess_map", "change_map", "draw_samples", "polygonise_map", "zone_statistics"),
    },
    "iic_runtime": {
        *("Benchmark", "Trial", "benchmark_model"),
        *("NamedModel", "Place", "name_model", "suggest_places"),
        *("Collection", "get_model", "write_index"),
        *("Classification", "Classifier", "classify_images"),
        *("Card", "Outcome", "Segmentation", "Segmenter", "Summary"),
        *("segment_raster", "segment_rasters", "validate_model"),
        *("bundled_models", "cluster_scene", "find_model", "huggingface_card", "look", "rename_model"),
    },
    "iic_train": {
        *(
            "Network",
            "NetworkConfig",
            "Run",
            "TrainConfig",
            "evaluate",
            "find_run",
            "finetune_scenes",
            "learn",
            "load_run",
        ),
        *("resume", "train", "train_preset", "train_rasters", "train_recipe", "write_report"),
    },
    "iic_export": {"Exported", "export"},
}


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_the_public_names_of_a_package(package: str) -> None:
    module = import_module(package)
    assert set(module.__all__) - {"__version__"} == PUBLIC_NAMES[package]
    for name in PUBLIC_NAMES[package]:
        assert getattr(module, name) is not None  # imports it: names are lazy


def test_all_packages_have_one_version() -> None:
    assert len({import_module(package).__version__ for package in PUBLIC_NAMES}) == 1


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_training_waits_without_spinning_unless_configured_otherwise(given: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given:
        environment["OMP_WAIT_POLICY"] = given
    code = "import iic_train, os, sys; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == [given or "PASSIVE", "False"]


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_arguments_of_a_wrong_type_are_a_sentence(package: str) -> None:
    module = import_module(package)
    functions = [getattr(module, name) for name in PUBLIC_NAMES[package]]
    for function in filter(inspect.isfunction, functions):
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD and name != "scheduler":  # whose type needs Dask
                others = {
                    other.name: "x"
                    for other in inspect.signature(function).parameters.values()
                    if other.default is other.empty and other.kind is not other.VAR_KEYWORD
                }
                with pytest.raises(UsageError, match="must be"):
                    function(**{**others, name: object()})
