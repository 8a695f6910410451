"""`iic-segment-raster` when something is wrong: one sentence, the right exit code, no output file."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio
from support.scenes import landscape
from support.tiny_onnx import make_card, make_model
from typer.testing import CliRunner

from iic_runtime.cli.model import app as model_app
from iic_runtime.cli.segment_raster import app
from iic_runtime.model.file import put_card, with_metadata

MakeScene = Callable[..., Path]


@pytest.fixture
def scene(make_scene: MakeScene) -> Path:
    return make_scene(landscape(60, 70))


@pytest.fixture
def fails(scene: Path, model: Path, tmp_path: Path) -> Callable[..., str]:
    """Run the command, expect it to fail, and return its one sentence."""

    def run(*options: object, scene: object = scene, out: Path = tmp_path / "map.tif", code: int = 1) -> str:
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        named = [] if "--model" in options else ["--model", model]
        result = CliRunner().invoke(app, [str(x) for x in (scene, out, *named, "--device", "cpu", *options)])
        assert result.exit_code == code, result.output
        lines = [line for line in result.stderr.splitlines() if line.startswith("Error")]
        assert len(lines) == 1, result.output
        assert "Traceback" not in result.output
        after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        assert after == before, "a failed run leaves no file"
        return lines[0]

    return run


def test_missing_scene(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "There is no file" in fails(scene=tmp_path / "nothing.tif")


def test_not_a_raster(fails: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a raster that GDAL can open" in fails(scene=tmp_path / "notes.txt")


@pytest.mark.parametrize("kept", [100, 5000])
def test_truncated_scene(fails: Callable[..., str], scene: Path, kept: int) -> None:
    scene.write_bytes(scene.read_bytes()[:kept])
    assert "scene.tif" in fails()


def test_a_failing_read_in_the_middle_fails_the_run(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    path = make_scene(
        landscape(700, 500), "damaged.tif", compress="zstd", tiled=True, blockxsize=64, blockysize=64
    )
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(content[:middle] + b"damaged!" * 2000 + content[middle + 16000 :])
    result = CliRunner().invoke(
        app, [str(x) for x in (path, tmp_path / "map.tif", "--model", model, "--tile", 100)]
    )
    assert result.exit_code == 1
    assert "Error: Cannot read rows" in result.stderr
    assert not (tmp_path / "map.tif").exists()


def test_a_missing_piece_of_a_mosaic_fails_the_run(
    fails: Callable[..., str], make_scene: MakeScene, tmp_path: Path
) -> None:
    source = make_scene(landscape(60, 70), "piece.tif", nodata=0)
    rasterio.shutil.copy(source, tmp_path / "mosaic.vrt", driver="VRT")
    source.unlink()
    assert "mosaic.vrt" in fails(scene=tmp_path / "mosaic.vrt")


def test_too_few_bands(fails: Callable[..., str], make_scene: MakeScene) -> None:
    message = fails(scene=make_scene(landscape(60, 70, bands=3), "rgb.tif"))
    assert "no band named nir" in message
    assert "train a model" in message


def test_unnamed_bands_are_read_in_the_order_of_the_model_with_a_warning(
    make_scene: MakeScene, model: Path, tmp_path: Path
) -> None:
    scene = make_scene(landscape(60, 70), "unnamed.tif", descriptions=None)
    result = CliRunner().invoke(app, [str(x) for x in (scene, tmp_path / "map.tif", "--model", model)])
    assert result.exit_code == 0, result.output
    assert "taken as 1 red, 2 green, 3 blue, 4 nir" in result.stderr
    assert "Override with --bands" in result.stderr
    named = make_scene(landscape(60, 70), "named.tif")
    CliRunner().invoke(app, [str(x) for x in (named, tmp_path / "same.tif", "--model", model)])
    with rasterio.open(tmp_path / "map.tif") as first, rasterio.open(tmp_path / "same.tif") as second:
        np.testing.assert_array_equal(first.read(), second.read())


@pytest.mark.parametrize("bands", ["1,2,3", "1,2,3,9", "1,1,2,3"])
def test_wrong_bands(fails: Callable[..., str], bands: str) -> None:
    assert "--bands" in fails("--bands", bands, code=2)


def test_complex_numbers(fails: Callable[..., str], make_scene: MakeScene) -> None:
    assert "complex" in fails(scene=make_scene(landscape(60, 70).astype(np.complex64), "sar.tif"))


@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32", "int32"])
def test_eight_bits_in_another_type_are_recognised(
    make_scene: MakeScene, model: Path, tmp_path: Path, dtype: str
) -> None:
    maps = []
    for kind in ("uint8", dtype):
        scene = make_scene(landscape(60, 70).astype(kind), f"{kind}.tif")
        out = tmp_path / f"{kind}-map.tif"
        result = CliRunner().invoke(app, [str(x) for x in (scene, out, "--model", model)])
        assert result.exit_code == 0, result.output
        with rasterio.open(out) as dataset:
            maps.append(dataset.read())
    assert f"8 bits stored as {dtype}" in result.stderr
    np.testing.assert_array_equal(*maps)


@pytest.mark.parametrize("rescale", ["3", "5,1", "low,high", "0,inf", "nan,1"])
def test_wrong_rescale(fails: Callable[..., str], rescale: str) -> None:
    assert "--rescale" in fails("--rescale", rescale, code=2)


def test_no_crs_works_with_a_note(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    scene = make_scene(landscape(60, 70), "nowhere.tif", crs=None, transform=None)
    result = CliRunner().invoke(app, [str(x) for x in (scene, tmp_path / "map.tif", "--model", model)])
    assert result.exit_code == 0, result.output
    assert "has no CRS" in result.stderr


@pytest.mark.parametrize(
    ("bounds", "message", "code"),
    [
        ("0 0 10 10", "outside the scene", 1),
        ("500010 5399990 500010 5399995", "no area", 2),
        ("1 2 3", "LEFT BOTTOM RIGHT TOP", 2),
        ("-inf 0 inf 1", "finite", 2),
    ],
)
def test_wrong_bounds(fails: Callable[..., str], bounds: str, message: str, code: int) -> None:
    assert message in fails("--bounds", bounds, code=code)


def test_match_gsd_needs_both_distances(
    fails: Callable[..., str], make_scene: MakeScene, tmp_path: Path
) -> None:
    assert "ground sample distance" in fails("--match-gsd")
    (tmp_path / "half.onnx").write_bytes(make_model(gsd=0.5))
    nowhere = make_scene(landscape(60, 70), "nowhere.tif", crs=None)
    assert "CRS" in fails("--match-gsd", "--model", tmp_path / "half.onnx", scene=nowhere)


def test_files_that_are_not_models(fails: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    assert "Cannot read the model" in fails("--model", path)
    path.write_bytes(b"not a model at all")
    assert "not an ONNX model" in fails("--model", path)
    path.write_bytes(with_metadata(make_model(), {}))
    assert "has no card" in fails("--model", path)
    newer = make_card().to_json().replace('"version": 1', '"version": 2')
    path.write_bytes(with_metadata(make_model(), {"iic_card": newer}))
    assert "install a newer iic-edge" in fails("--model", path)
    path.write_bytes(put_card(make_model(), make_card(bands=("red", "green", "blue"))))
    assert "its card says 3 bands" in fails("--model", path)
    path.write_bytes(put_card(make_model(), make_card(dtype="uint16")))
    assert "its card says uint16" in fails("--model", path)
    path.write_bytes(put_card(make_model(), make_card(task="clustering")))
    assert "whole images" in fails("--model", path)
    path.write_bytes(make_model()[:6000])
    assert "other.onnx" in fails("--model", path)


@pytest.mark.parametrize("device", ["cuda", "tensorrt"])
def test_a_gpu_that_is_not_there(fails: Callable[..., str], device: str) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has GPU providers")
    assert "use --device cpu" in fails("--device", device)


def test_existing_output(fails: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "map.tif").write_text("precious")
    assert "--overwrite" in fails()
    assert (tmp_path / "map.tif").read_text() == "precious"


@pytest.mark.parametrize("name", ["map.tif", "nowhere/map.tif", "map.jpeg"])
def test_names_are_checked_before_anything_is_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "map.tif").write_text("precious")
    arguments = [str(tmp_path / "nothing.tif"), str(tmp_path / name), "--model", "nothing.onnx"]
    result = CliRunner().invoke(app, arguments)
    (line,) = result.stderr.splitlines()
    assert "nothing" not in line


def test_the_name_of_a_scene_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    result = CliRunner().invoke(app, ["a", "bb", str(tmp_path / "maps"), "--quiet"])
    assert result.stderr.splitlines() == [
        f"Error: There is no file {name}: check the path." for name in ("a", "bb")
    ]


def test_output_equal_to_the_scene(fails: Callable[..., str], scene: Path) -> None:
    assert "is an input" in fails("--overwrite", out=scene, code=2)


def test_output_equal_to_a_file_of_a_mosaic(
    fails: Callable[..., str], make_scene: MakeScene, tmp_path: Path
) -> None:
    piece = make_scene(landscape(60, 70), "piece.tif")
    rasterio.shutil.copy(piece, tmp_path / "mosaic.vrt", driver="VRT")
    message = fails("--overwrite", scene=tmp_path / "mosaic.vrt", out=piece, code=2)
    assert "piece.tif is an input" in message


def test_polygons_that_cannot_be_are_refused_before_the_work(
    fails: Callable[..., str], make_scene: MakeScene, tmp_path: Path
) -> None:
    nowhere = make_scene(landscape(60, 70), "nowhere.tif", crs=None, transform=None)
    assert ".gpkg or .fgb" in fails("--polygons", tmp_path / "p.geojson", scene=nowhere, code=2)
    large = ("--polygons", tmp_path / "p.gpkg", "--min-area", 5)
    assert "reference system" in fails(*large, scene=nowhere, code=2)
    assert "0 or more" in fails("--polygons", tmp_path / "p.gpkg", "--min-area", "-1", code=2)


def test_a_folder_that_no_run_has_made_is_left_alone(fails: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "map.tif.parts"
    folder.mkdir()
    (folder / "precious.txt").write_text("precious")
    assert "not the folder of an earlier run" in fails()


def test_a_place_that_fills_up_at_the_last_step(
    scene: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iic_runtime.raster import segment

    def full(made: Path, final: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final))

    monkeypatch.setattr(segment, "put_in_place", full)
    result = CliRunner().invoke(app, [str(x) for x in (scene, tmp_path / "map.tif", "--model", model)])
    assert result.exit_code == 1
    assert "No space left" in result.stderr
    assert "Error: Cannot write" in result.stderr


def test_a_graph_that_fails_when_it_runs(make_scene: MakeScene, tmp_path: Path) -> None:
    """A model of even sides only, given odd ones."""
    import onnx

    graph = onnx.load_from_string(make_model())
    for node in graph.graph.node:
        if node.op_type == "Slice":
            node.op_type = "Expand"
            del node.input[1:]
            node.input.append("shape")
    model = tmp_path / "fragile.onnx"
    model.write_bytes(graph.SerializeToString())
    scene = make_scene(landscape(61, 71), "odd.tif")
    result = CliRunner().invoke(app, [str(x) for x in (scene, tmp_path / "map.tif", "--model", model)])
    assert result.exit_code == 1, result.output
    assert "Error: The model failed on 1 x 4 x 61 x 71 pixels" in result.stderr
    assert not (tmp_path / "map.tif.parts").exists()


def test_a_map_without_data_is_reported(make_scene: MakeScene, model: Path, tmp_path: Path) -> None:
    empty = make_scene(np.zeros((4, 60, 70), np.uint8), "empty.tif", nodata=0)
    result = CliRunner().invoke(app, [str(x) for x in (empty, tmp_path / "map.tif", "--model", model)])
    assert result.exit_code == 0, result.output
    assert "the map will be empty" in result.stderr


def test_one_name_for_two_outputs(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "same name" in fails("--confidence", tmp_path / "map.tif", code=2)


@pytest.mark.parametrize(
    "option",
    [
        ("--stats", "s.txt"),
        ("--polygons", "p.shp"),
        ("--preview", "p.gif"),
        ("--web", "w.txt"),
        ("--confidence", "c.png"),
    ],
)
def test_the_suffix_decides_the_format(fails: Callable[..., str], option: tuple[str, str]) -> None:
    assert f"{option[0]} must end in" in fails(*option, code=2)


@pytest.mark.parametrize("options", [("--tile", 0), ("--batch", 0), ("--threads", 0), ("--min-area", 3)])
def test_numbers_that_make_no_sense(fails: Callable[..., str], options: tuple[str, int]) -> None:
    assert options[0] in fails(*options, code=2)


@pytest.mark.parametrize("size", ["lots", "10M"])
def test_memory_that_is_too_little(fails: Callable[..., str], size: str) -> None:
    assert "--max-memory" in fails("--max-memory", size, code=2)


@pytest.mark.parametrize("option", ["COMPRESS", "COMPRESS=JPEG", "NONSENSE=1", "BLOCKSIZE=7"])
def test_wrong_creation_options(fails: Callable[..., str], option: str) -> None:
    fails("--co", option, code=2)


def test_missing_folder(fails: Callable[..., str], tmp_path: Path) -> None:
    assert "There is no folder" in fails(out=tmp_path / "no" / "map.tif")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
@pytest.mark.parametrize(("mode", "out"), [(0o555, "map.tif"), (0o700, "map.tif"), (0o700, "folder/map.tif")])
def test_unwritable_folder(scene: Path, model: Path, tmp_path: Path, mode: int, out: str) -> None:
    closed = tmp_path / "closed"
    (closed / out).parent.mkdir(parents=True)
    closed.chmod(mode)
    before = sorted(closed.rglob("*"))
    arguments = [str(x) for x in (scene, tmp_path / "first.tif", "--model", model, "--device", "cpu")]
    assert CliRunner().invoke(app, arguments).exit_code == 0  # and everything is imported
    opened = [folder for folder in tmp_path.parents if not folder.stat().st_mode & stat.S_IXOTH]
    modes = [folder.stat().st_mode for folder in opened]
    for folder in [tmp_path, *opened]:
        folder.chmod(0o755)
    os.seteuid(65534)  # root may write everywhere
    try:
        arguments[1] = str(closed / out)
        result = CliRunner().invoke(app, arguments)
    finally:
        os.seteuid(0)
        for folder, before_test in zip(opened, modes, strict=True):
            folder.chmod(before_test)
    assert result.exit_code == 1, result.output
    assert "cannot be written to" in result.stderr
    assert sorted(closed.rglob("*")) == before


@pytest.mark.parametrize("limit", [600, 3000, 30000])
def test_full_disk(scene: Path, model: Path, make_scene: MakeScene, tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stands for a disk that fills up: writes beyond it fail."""
    scene = make_scene(np.random.default_rng(0).integers(1, 255, (4, 500, 500)).astype(np.uint8), "noise.tif")
    folder = tmp_path / "out"
    folder.mkdir()
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from iic_runtime.cli.segment_raster import main; import iic_runtime.raster.segment;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); main()"
    )
    arguments = [str(scene), str(folder / "map.tif"), "--model", str(model), "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "Error: " in done.stderr
    assert not (folder / "map.tif").exists()


def test_traceback_raises_the_error(scene: Path, tmp_path: Path, model: Path) -> None:
    arguments = [
        str(tmp_path / "nothing.tif"),
        str(tmp_path / "map.tif"),
        "--model",
        str(model),
        "--traceback",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert isinstance(result.exception, OSError)


def test_model_show_and_validate(model: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(model_app, ["show", str(model)])
    assert shown.exit_code == 0, shown.output
    for word in ("tiny", "red, green, blue, nir", "uint8", "cluster 3", "10 px, 2 px"):
        assert word in shown.stdout
    checked = CliRunner().invoke(model_app, ["validate", str(model)])
    assert checked.exit_code == 0, checked.output
    assert "FAIL" not in checked.stdout
    short = tmp_path / "short.onnx"
    short.write_bytes(put_card(make_model(), make_card(halo=4)))
    refused = CliRunner().invoke(model_app, ["validate", str(short)])
    assert refused.exit_code == 1
    assert "FAIL tiles with a halo of 4 px" in refused.stdout
    missing = CliRunner().invoke(model_app, ["show", str(tmp_path / "no.onnx")])
    assert missing.exit_code == 1
    assert "Cannot read the model" in missing.stderr
