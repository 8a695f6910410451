"""Collections of models: an index is written, read, and never believed blindly."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.server import serve
from support.tiny_onnx import make_model
from typer.testing import CliRunner

from iic_geotools.errors import IICError, ModelError, OutputError, UsageError
from iic_runtime import Collection, Segmenter, get_model, write_index
from iic_runtime.cli.model import app
from iic_runtime.model.card import Origin
from iic_runtime.model.select import find_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("IIC_MODEL_INDEX", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two models, one in a folder below whose name has a blank, and their index."""
    folder = tmp_path / "collection"
    (folder / "more models").mkdir(parents=True)
    origin = Origin(data="made scenes", licence="CC0")
    files = [folder / "forest.onnx", folder / "more models" / "river #1.onnx"]
    files[0].write_bytes(make_model(name="forest", gsd=0.5, origin=origin))
    files[1].write_bytes(make_model(1, classes=3, name="river [x]", gsd_range=(3.0, 10.0)))
    write_index(files, folder / "index.json")
    return folder


def test_an_index_says_what_its_models_are(folder: Path) -> None:
    content = json.loads((folder / "index.json").read_text())
    assert content["version"] == 1
    forest, river = content["models"]
    model = find_model(folder / "forest.onnx")
    assert forest == {
        "name": "forest",
        "url": "forest.onnx",
        "sha256": model.digest,
        "bytes": len(model.content),
        "gsd_range": [0.5, 0.5],
        "bands": ["red", "green", "blue", "nir"],
        "classes": ["cluster 0", "cluster 1", "cluster 2", "cluster 3"],
        "data": "made scenes",
        "licence": "CC0",
    }
    assert river["url"] == "more%20models/river%20%231.onnx"
    assert Collection.read(folder / "index.json").entries[1].gsd_range == (3.0, 10.0)


@pytest.mark.parametrize("name", ["forest", "river [x]"])
def test_a_model_by_name_from_a_folder_and_from_a_server(folder: Path, cache: Path, name: str) -> None:
    local = get_model(name, index=folder / "index.json")
    assert local.path.parent == cache / "models"
    shutil.rmtree(cache)
    with serve() as server:
        for file in folder.rglob("*.*"):
            path = file.relative_to(folder).as_posix().replace(" ", "%20").replace("#", "%23")
            server.answers[f"/deep/{path}"] = file.read_bytes()
        remote = get_model(name, index=f"{server.address}/deep/index.json")
    assert remote == local


def test_names_are_looked_for_in_the_collection_of_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="IIC_MODEL_INDEX"):
        get_model("forest")
    monkeypatch.setenv("IIC_MODEL_INDEX", str(folder / "index.json"))
    assert Segmenter("forest", device="cpu").card.name == "forest"
    assert find_model("satellite").card.name == "satellite", "a bundled model comes first"
    with pytest.raises(ModelError, match=r"no model desert in .*; there are forest, river \[x\]\."):
        find_model("desert")


def test_the_commands(folder: Path, cache: Path) -> None:
    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    index = folder / "index.json"
    assert run("index", folder / "forest.onnx", "-o", index) == f"{index}: 1 models\n"
    table = run("list", "--index", index)
    assert "forest" in table
    assert "0.5 m" in table
    assert json.loads(run("list", "--index", index, "--json"))[0]["name"] == "forest"
    assert run("get", "forest", "--index", index).startswith(str(cache))


def test_a_file_that_is_not_the_one_of_the_index(folder: Path, cache: Path) -> None:
    (folder / "forest.onnx").write_bytes(make_model(2, name="forest"))
    with pytest.raises(ModelError, match="not the file that the index"):
        get_model("forest", index=folder / "index.json")
    with serve() as server:
        server.answers["/index.json"] = (folder / "index.json").read_bytes()
        server.answers["/forest.onnx"] = (folder / "forest.onnx").read_bytes()
        with pytest.raises(ModelError, match="another file than the digest says"):
            get_model("forest", index=f"{server.address}/index.json")
    assert not cache.exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.invalid/x.onnx",
        "file:///etc/passwd",
        "/etc/passwd",
        "../secret.onnx",
        "a/../../b.onnx",
        "%2e%2e/x",
    ],
)
def test_an_index_refers_to_its_own_folder_or_to_https(folder: Path, url: str) -> None:
    change(folder / "index.json", lambda index: index["models"][0].update(url=url))
    with pytest.raises(ModelError, match="refers to"):
        get_model("forest", index=folder / "index.json")


def change(index: Path, update: Callable[[Any], object]) -> None:
    content = json.loads(index.read_text())
    update(content)
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda index: index.update(version=2), "version is 2"),
        (lambda index: index.pop("version"), "'version' is missing"),
        (lambda index: index.pop("models"), "'models' is missing"),
        (lambda index: index.update(models=[1]), "not an index"),
        (lambda index: index.update(models=7), "not an index"),
        (lambda index: index["models"].append(index["models"][0]), "one name"),
        (lambda index: index["models"][0].pop("sha256"), "'sha256' is missing"),
        (lambda index: index["models"][0].update(sha256="abc"), "64 hexadecimal digits"),
        (lambda index: index["models"][0].update(name="\x1b[31mred"), "printable"),
        (lambda index: index["models"][0].update(name=" "), "must not be empty"),
        (lambda index: index["models"][0].update(classes=["x" * 1000]), "short"),
        (lambda index: index["models"][0].update(bands=[1]), "printable"),
        (lambda index: index["models"][0].update(bytes=-1), "whole number"),
        (lambda index: index["models"][0].update(gsd_range=[1]), "not an index"),
    ],
)
def test_what_is_not_an_index_is_refused(folder: Path, update: Callable[[Any], object], message: str) -> None:
    change(folder / "index.json", update)
    with pytest.raises(ModelError, match=message):
        Collection.read(folder / "index.json")


def test_fields_of_later_versions_are_left_out(folder: Path) -> None:
    change(folder / "index.json", lambda index: index["models"][0].update(surprise=1))
    assert Collection.read(folder / "index.json").find("forest").name == "forest"


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": 1'])
def test_any_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(ModelError, match="not an index"):
        Collection.read(tmp_path / "index.json")
    with pytest.raises(ModelError, match="Cannot read the index"):
        Collection.read(tmp_path / "none.json")


def test_collections_that_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    forest = folder / "forest.onnx"
    cases: list[tuple[list[Path], Path, type[IICError], str]] = [
        ([forest], folder / "index.txt", UsageError, "json"),
        ([forest], tmp_path / "other" / "index.json", UsageError, "must lie in the folder"),
        ([forest, forest], folder / "index.json", UsageError, "distinct names"),
        ([folder / "x.engine"], folder / "index.json", UsageError, "one kind of GPU"),
        ([folder / "none.onnx"], folder / "index.json", ModelError, "Cannot read the model"),
    ]
    before = (folder / "index.json").read_bytes()
    for models, out, error, message in cases:
        with pytest.raises(error, match=message):
            write_index(models, out)
    assert (folder / "index.json").read_bytes() == before
    (folder / "taken.json").mkdir()
    with pytest.raises(OutputError, match="cannot be written"):
        write_index([forest], folder / "taken.json")
