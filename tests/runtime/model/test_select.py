"""Models by name, and the bundled model that fits a scene if none is named."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.transform import from_origin
from support.scenes import landscape
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_geotools.classmap.classes import MapClass
from iic_geotools.errors import AssumptionWarning
from iic_geotools.scene.info import describe
from iic_runtime import Segmenter, segment_raster, segment_rasters, validate_model
from iic_runtime.cli.model import app as model_app
from iic_runtime.cli.segment_raster import app
from iic_runtime.model.file import ModelFile
from iic_runtime.model.select import MODEL_VARIABLE, ModelSelector, bundled_models, choose_bundled, find_model

MakeScene = Callable[..., Path]
pytestmark = pytest.mark.usefixtures("bundle")


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def tags(path: Path) -> dict[str, str]:
    with rasterio.open(path) as dataset:
        return dict(dataset.tags())


@pytest.fixture
def scene_of(make_scene: MakeScene) -> Callable[..., Path]:
    """Make a scene with pixels of the given size in metres."""

    def make(size: float, **options: object) -> Path:
        where = from_origin(500000, 5400000, size, size)
        return make_scene(landscape(40, 50), f"{size:g}m.tif", transform=where, **options)

    return make


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (0.2, "aerial"),
        (0.5, "aerial"),
        (1.0, "aerial"),
        (3.0, "satellite"),
        (10.0, "satellite"),
        (1.7, "aerial"),  # the middle between 1 and 3, in octaves, is 1.73
        (1.8, "satellite"),
        (0.01, "aerial"),
        (60.0, "satellite"),
    ],
)
def test_the_one_made_for_the_pixels_or_the_nearest(size: float, name: str) -> None:
    assert choose_bundled(size).card.name == name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.floats(1e-3, 1e4))
def test_no_other_is_nearer(size: float) -> None:
    def octaves(model: ModelFile) -> float:
        low, high = model.card.gsd_range or (math.nan, math.nan)
        return abs(math.log2(size / min(max(size, low), high)))

    assert octaves(choose_bundled(size)) == min(map(octaves, bundled_models()))


@pytest.mark.parametrize(
    ("size", "message", "warned"),
    [
        (0.2, "Model: aerial (for 0.2 to 1 m; the scene has 0.2 m)", False),
        (1.02, "Model: aerial (for 0.2 to 1 m; the scene has 1.02 m)", False),
        (1.2, "Model: aerial (for 0.2 to 1 m; the scene has 1.2 m)", True),
        (2.5, "Model: satellite (for 3 to 10 m; the scene has 2.5 m)", False),
        (30, "Model: satellite (for 3 to 10 m; the scene has 30 m)", True),
    ],
)
def test_the_command_names_its_choice(
    scene_of: Callable[..., Path], tmp_path: Path, size: float, message: str, warned: bool
) -> None:
    code, output = run(scene_of(size), tmp_path / "map.tif")
    assert code == 0, output
    lines = output.splitlines()
    assert message in lines
    warnings = [line for line in lines if "may be poor" in line]
    assert len(warnings) == warned
    assert all(f"measure {size:g} m" in line and "train a model" in line for line in warnings)
    assert any("px of 3 m" in line for line in lines) == (size == 2.5)
    assert tags(tmp_path / "map.tif")["IIC_MODEL"] == message.split()[1]


def test_degrees_are_measured_on_the_ground(make_scene: MakeScene, tmp_path: Path) -> None:
    degree = 111_320.0
    where = from_origin(3.0, 60.0, 10 / degree / 0.5, 10 / degree)
    scene = make_scene(landscape(40, 50), crs="EPSG:4326", transform=where)
    summary = segment_raster(scene, tmp_path / "map.tif")
    assert summary.card.name == "satellite"


@pytest.mark.parametrize(
    "nowhere", [{"crs": None, "transform": None}, {"crs": "EPSG:32631", "transform": None}]
)
def test_a_scene_of_unknown_resolution_is_mapped_with_a_sentence(
    make_scene: MakeScene, tmp_path: Path, nowhere: dict[str, object]
) -> None:
    scene = make_scene(landscape(40, 50), **nowhere)
    code, output = run(scene, tmp_path / "map.tif")
    assert code == 0, output
    assert "has no ground resolution" in output
    assert "because its values have 8 bits. Override with --model." in output
    assert tags(tmp_path / "map.tif")["IIC_MODEL"] == "aerial"
    assert tags(tmp_path / "map.tif")["IIC_READ_AS"] == "Bands: 1 red, 2 green, 3 blue, 4 nir."
    code, output = run(scene, tmp_path / "map2.tif", "--model", "satellite")
    assert code == 0, output
    assert tags(tmp_path / "map2.tif")["IIC_MODEL"] == "satellite"


@pytest.mark.parametrize(
    ("place", "name", "metres"),
    [
        (from_origin(500000, 5400000, 0.2, 0.2), "aerial", "0.2"),
        (from_origin(500000, 5400000, 10, 10), "satellite", "10"),
        (from_origin(12, 60, 9e-5, 9e-5), "satellite", "7.08"),
    ],
)
def test_a_transform_without_a_crs_tells_the_size_of_pixels(
    make_scene: MakeScene, place: Affine, name: str, metres: str
) -> None:
    scene = describe(str(make_scene(landscape(40, 50), crs=None, transform=place)))
    with pytest.warns(AssumptionWarning, match=f"taken to measure {metres} m, and the model {name} is taken"):
        assert ModelSelector().for_scene(scene).card.name == name


def test_named_models(scene_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene = scene_of(0.5)
    assert segment_raster(scene, tmp_path / "a.tif", "satellite").card.name == "satellite"
    monkeypatch.setenv(MODEL_VARIABLE, "satellite")
    assert segment_raster(scene, tmp_path / "b.tif").card.name == "satellite", "rather than by resolution"
    assert find_model("aerial").card.name == "aerial"
    (tmp_path / "aerial").mkdir()
    assert find_model("aerial").card.name == "aerial", "a folder is not a model"
    (tmp_path / "aerial").rmdir()
    (tmp_path / "aerial").write_bytes(make_model())
    assert find_model("aerial").card.name == "tiny", "a file wins"
    with pytest.raises(
        ValueError, match=r"the model aeriel: .* the bundled models are aerial, satellite"
    ) as caught:
        find_model("aeriel")
    assert len(str(caught.value).splitlines()) == 1


def test_a_named_range_is_warned_about_too(scene_of: Callable[..., Path], tmp_path: Path) -> None:
    code, output = run(scene_of(0.5), tmp_path / "map.tif", "--model", "satellite", "--no-match-gsd")
    assert code == 0
    assert "measure 0.5 m, but the model satellite is made for 3 to 10 m" in output
    assert "Model:" not in output


def test_many_scenes_each_with_its_own(
    scene_of: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = Segmenter.__init__

    def count(self: Segmenter, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)  # type: ignore[arg-type]
        opened.append(self.card.name)

    monkeypatch.setattr(Segmenter, "__init__", count)
    nowhere = scene_of(0.3, crs=None)
    scenes = [scene_of(size) for size in (0.5, 5, 0.25, 8)]
    outcomes = segment_rasters([*scenes, nowhere], tmp_path / "maps", device="cpu")
    names = [outcome.summary.card.name for outcome in outcomes if outcome.summary]
    assert names == ["aerial", "satellite", "aerial", "satellite", "aerial"]
    assert opened == ["aerial", "satellite"]
    for scene, name in zip([*scenes, nowhere], names, strict=True):
        segment_raster(scene, tmp_path / "single.tif", name, device="cpu", overwrite=True)
        assert (tmp_path / "maps" / scene.name).read_bytes() == (tmp_path / "single.tif").read_bytes()
    again = segment_rasters(scenes, tmp_path / "maps", device="cpu")
    assert all(outcome.summary.made_before for outcome in again if outcome.summary)


def test_a_mosaic_is_of_one_model(scene_of: Callable[..., Path], tmp_path: Path) -> None:
    scenes = [scene_of(0.5), scene_of(5)]
    with pytest.raises(OSError, match="of aerial and satellite; name one with `model`"):
        segment_rasters(scenes, tmp_path / "maps", mosaic=tmp_path / "all.vrt")
    segment_rasters(scenes[:1], tmp_path / "maps", mosaic=tmp_path / "all.vrt")
    with rasterio.open(tmp_path / "all.vrt") as dataset:
        assert len({dataset.colormap(1)[label] for label in range(3)}) == 3


def test_arrays_need_a_name() -> None:
    with pytest.raises(ValueError, match=r"array has no ground resolution .* aerial or satellite"):
        Segmenter()
    assert Segmenter("aerial", device="cpu").card.name == "aerial"


def test_an_array_with_coordinates_has_a_resolution(
    scene_of: Callable[..., Path],
) -> None:
    import rioxarray

    from iic_runtime.adapters.xarray import segment

    with rioxarray.open_rasterio(scene_of(5), chunks={"x": 20}) as da:
        assert segment(da, device="cpu", threads=1).attrs["model"] == "satellite"
        with pytest.warns(
            AssumptionWarning, match="measure 5 m, but the model aerial is made for 0.2 to 1 m"
        ):
            assert segment(da, "aerial", device="cpu", threads=1).attrs["model"] == "aerial"
        nowhere = da.drop_vars("spatial_ref")
        with pytest.warns(AssumptionWarning, match="has no CRS: by its transform .* 5 m"):
            assert segment(nowhere, device="cpu", threads=1).attrs["model"] == "satellite"


def test_workers_get_the_chosen_model(scene_of: Callable[..., Path], tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    from iic_runtime.raster.cluster import Cluster

    scene = scene_of(5)
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as local,
        Client(local) as client,
    ):
        summary = segment_raster(scene, tmp_path / "map.tif", device="cpu", scheduler=Cluster(client, 1))
    assert summary.card.name == "satellite"
    segment_raster(scene, tmp_path / "own.tif", "satellite", device="cpu")
    assert (tmp_path / "map.tif").read_bytes() == (tmp_path / "own.tif").read_bytes()


def test_list() -> None:
    result = CliRunner().invoke(model_app, ["list"])
    assert result.exit_code == 0, result.output
    head, aerial, satellite = result.stdout.splitlines()
    assert head.split() == ["name", "ground", "resolution", "bands", "classes", "kB", "imagery"]
    assert aerial.startswith("aerial     0.2 to 1 m")
    assert "red, green, blue, nir" in aerial
    assert "cluster 0, cluster 1, cluster 2" in aerial
    assert satellite.endswith("imagery of satellite")
    rows = json.loads(CliRunner().invoke(model_app, ["list", "--json"]).stdout)
    assert [row["name"] for row in rows] == ["aerial", "satellite"]
    assert rows[1]["gsd_range"] == [3, 10]
    assert rows[1]["bytes"] == Path(rows[1]["file"]).stat().st_size
    assert rows[1]["licence"] == "CC0"


def test_show_and_validate_by_name() -> None:
    shown = CliRunner().invoke(model_app, ["show", "aerial"])
    assert shown.exit_code == 0, shown.output
    assert "imagery of aerial" in shown.stdout
    checked = CliRunner().invoke(model_app, ["validate", "satellite"])
    assert checked.exit_code == 0, checked.output
    assert "FAIL" not in checked.stdout
    assert CliRunner().invoke(model_app, ["show", "nothing"]).exit_code == 1


def test_a_bundled_model_is_renamed_only_in_a_copy(bundle: Path, tmp_path: Path) -> None:
    content = (bundle / "aerial.onnx").read_bytes()

    def rename(*arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(model_app, ["rename", *map(str, arguments)])
        return result.exit_code, result.output

    for name in ("aerial", bundle / "aerial.onnx"):
        code, output = rename(name, "0=water")
        assert code == 2
        assert "aerial comes with the package and must not be changed; write a copy, with --out." in output
    own = tmp_path / "own.onnx"
    assert rename("aerial", "0=water", "-o", own)[0] == 0
    assert ModelFile.read(own).card.classes[0].name == "water"
    assert all(check.kept for check in validate_model(own))
    assert (bundle / "aerial.onnx").read_bytes() == content
    code, output = rename("aerial", "0=lake", "-o", own)
    assert code == 2
    assert "own.onnx exists" in output
    assert rename("aerial", "0=lake", "-o", tmp_path / "own.tif")[0] == 2
    assert rename("aerial", "0=lake", "-o", tmp_path / "no" / "own.onnx")[0] == 2
    assert rename("aerial", "0=lake", "-o", bundle / "satellite.onnx")[0] == 2


def test_without_any_bundled_model(bundle: Path, scene_of: Callable[..., Path], tmp_path: Path) -> None:
    for file in bundle.iterdir():
        file.unlink()
    assert bundled_models() == ()
    bundle.rmdir()
    bundled_models.cache_clear()
    scene = scene_of(0.5)
    code, output = run(scene, tmp_path / "map.tif")
    assert code == 2
    assert "No model is named: give a file as --model, or set IIC_MODEL." in output
    with pytest.raises(ValueError, match="No model is named"):
        segment_rasters([scene], tmp_path / "maps")
    with pytest.raises(ValueError, match="No model is named"):
        Segmenter()
    assert "No model is bundled" in CliRunner().invoke(model_app, ["list"]).stdout
    assert CliRunner().invoke(model_app, ["list", "--json"]).stdout == "[]\n"


class TestOtherSensors:
    """What people's scenes are like, with the model that is chosen for them."""

    def test_bands_in_another_order(self, make_scene: MakeScene, tmp_path: Path) -> None:
        values = landscape(40, 50)
        segment_raster(make_scene(values), tmp_path / "a.tif")
        names = ("Near-infrared", "Red", "Green", "Blue")
        segment_raster(make_scene(values[[3, 0, 1, 2]], "b.tif", descriptions=names), tmp_path / "map.tif")
        with rasterio.open(tmp_path / "a.tif") as a, rasterio.open(tmp_path / "map.tif") as b:
            assert np.array_equal(a.read(), b.read())

    def refused(self, scene: Path, tmp_path: Path) -> str:
        code, output = run(scene, tmp_path / "map.tif")
        assert code == 1
        (line,) = (line for line in output.splitlines() if line.startswith("Error: "))
        assert not (tmp_path / "map.tif").exists()
        return line

    def test_bands_without_names(self, make_scene: MakeScene, tmp_path: Path) -> None:
        values = landscape(40, 50)
        scene = make_scene(values, descriptions=None)
        code, output = run(scene, tmp_path / "map.tif")
        assert code == 0
        assert "are taken as 1 red, 2 green, 3 blue, 4 nir, by the order of the model aerial." in output
        segment_raster(make_scene(values, "named.tif"), tmp_path / "named-map.tif")
        with rasterio.open(tmp_path / "map.tif") as a, rasterio.open(tmp_path / "named-map.tif") as b:
            assert np.array_equal(a.read(), b.read())
        assert "are taken as" not in run(scene, tmp_path / "map2.tif", "--bands", "1,2,3,4")[1]

    def test_sixteen_bits(self, make_scene: MakeScene, tmp_path: Path) -> None:
        scene = make_scene(landscape(40, 50).astype(np.uint16) * 40)
        code, output = run(scene, tmp_path / "map.tif")
        assert code == 0
        (line,) = (line for line in output.splitlines() if "the model takes 8 bits" in line)
        assert line.endswith("becomes 235. Override with --rescale.")

    def test_no_infrared(self, make_scene: MakeScene, tmp_path: Path) -> None:
        message = self.refused(make_scene(landscape(40, 50, 3)), tmp_path)
        assert "no band named nir (it has 1 red, 2 green, 3 blue)" in message
        assert "aerial takes red,green,blue,nir" in message
        assert message.endswith(
            "teach it with clicks in iic-studio, or train a model on its bands (red,green,blue) with iic-train rasters."
        )

    def test_no_infrared_and_no_names(self, make_scene: MakeScene, tmp_path: Path) -> None:
        message = self.refused(make_scene(landscape(40, 50, 3), descriptions=None), tmp_path)
        assert message.endswith(
            "teach it with clicks in iic-studio, or train a model on its bands (1,2,3) with iic-train rasters."
        )

    def test_a_fourth_band_may_be_alpha_or_infrared(self, make_scene: MakeScene, tmp_path: Path) -> None:
        values = landscape(40, 50)
        # what a writer that knows nothing about the bands makes of four of them
        infrared = make_scene(values, "infrared.tif", descriptions=None, photometric="RGB", alpha="yes")
        code, output = run(infrared, tmp_path / "infrared-map.tif")
        assert code == 0
        assert "are taken as 1 red, 2 green, 3 blue, 4 nir, by the order of the model aerial." in output
        values[3] = 255
        values[3, :5] = 0
        scene = make_scene(values, descriptions=None, photometric="RGB", alpha="yes")
        message = self.refused(scene, tmp_path)
        assert "4 alpha" in message
        assert "if it has nir under another name, give --bands in the order red,green,blue,nir" in message
        assert message.endswith("(red,green,blue) with iic-train rasters.")

    def test_the_hint_lists_what_the_file_calls_its_bands(
        self, make_scene: MakeScene, tmp_path: Path
    ) -> None:
        names = ("green", "swir 2.2", "B02", "red")
        message = self.refused(make_scene(landscape(40, 50), descriptions=names), tmp_path)
        assert "no band named nir (it has 1 green, 2 swir 2.2, 3 B02 (blue), 4 red)" in message


@pytest.mark.parametrize(("size", "matched"), [(0.1, 0.2), (0.2, 0.2), (0.5, 0.5), (3.0, 1.0), (None, 0.45)])
def test_scenes_are_matched_to_the_nearest_size_a_model_is_made_for(
    size: float | None, matched: float
) -> None:
    from iic_runtime.model.card import Card
    from iic_runtime.model.select import matching_size

    card = Card("m", ("red",), (MapClass("a", "#000000"),), 2, 1, 9, gsd=0.45, gsd_range=(0.2, 1.0))
    assert matching_size(card, size) == matched
