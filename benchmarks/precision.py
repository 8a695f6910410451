"""The bundled models with 8-bit integers, and with weights of 16 bits: size, labels that stay the same, speed.

    python benchmarks/precision.py SCENE.tif... [--tiles 6] [--rounds 3]

Half of the tiles, spread over the scenes, calibrate the integers as `iic-export --precision int8` does, the others are
measured; each model gets the scenes of its own resolution. Speeds are ratios of processor time with one thread, each
precision in turn on the same tile, the least of a few rounds: other work on the machine counts little. An accuracy can
change by no more than the labels that differ.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from iic_export.torch_to_onnx import quantise
from iic_geotools.scene.listing import find_scene
from iic_geotools.tiling import TileGrid
from iic_runtime.engine.base import Engine
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.model.card import Card
from iic_runtime.model.file import ModelFile, put_card
from iic_runtime.model.select import bundled_models, describe_misfit, ground_resolution
from iic_runtime.options import EngineSettings
from iic_runtime.raster.model_input import choose_reading

Images = list[NDArray[Any]]


def read_tiles(scene: str, card: Card, count: int) -> Iterator[NDArray[Any]]:
    """Read tiles as the model takes them, evenly spread over a scene; none if it is made for other resolutions."""
    info = find_scene(scene)
    if describe_misfit(card, ground_resolution(info.grid)) is not None:
        return
    source = choose_reading(info, card, match_gsd=False)
    grid = TileGrid(info.grid.width, info.grid.height, 512, card.halo, card.stride)
    whole = [tile for tile in grid if tile.core.area == 512 * 512] or list(grid)
    with source.open() as handle:
        for index in np.linspace(0, len(whole) - 1, count).astype(int):
            yield handle.read(whole[index].read).values


def halve_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Store weights in 16 bits; the graph turns them into float32, once, when it is opened."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for weight in copy.graph.initializer:
        if weight.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(weight).astype(np.float16)
            name = weight.name
            weight.CopyFrom(onnx.numpy_helper.from_array(values, f"{name} half"))
            cast = onnx.helper.make_node("Cast", [f"{name} half"], [name], to=onnx.TensorProto.FLOAT)
            copy.graph.node.insert(0, cast)
    return copy


def measure(engines: dict[str, Engine], tiles: Images, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the share of labels that are those of the first engine, and the processor time, of each engine."""
    seconds = dict.fromkeys(engines, 0.0)
    same = dict.fromkeys(engines, 0)
    for tile in tiles:
        reference = None
        least = dict.fromkeys(engines, np.inf)
        for _ in range(rounds):
            for name, engine in engines.items():
                begun = time.process_time()
                labels, _ = engine.run(tile[None], False)
                least[name] = min(least[name], time.process_time() - begun)
                reference = labels if reference is None else reference
                same[name] += int((labels == reference).sum())
        for name, taken in least.items():
            seconds[name] += taken
    pixels = sum(tile[0].size for tile in tiles) * rounds
    return {name: (same[name] / pixels, seconds[name]) for name in engines}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", nargs="+")
    parser.add_argument("--tiles", type=int, default=6, help="number of tiles of each scene")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'model':10} {'precision':13} {'kB':>6} {'labels as in fp32':>18} {'speed to fp32':>14}")
    with tempfile.TemporaryDirectory() as folder:
        for bundled in bundled_models():
            card = bundled.card
            images = [tile for scene in options.scenes for tile in read_tiles(scene, card, options.tiles)]
            if len(images) < 2:
                continue
            graph = onnx.load_from_string(bundled.content)
            versions = {
                "fp32": graph,
                "fp16 weights": halve_weights(graph),
                "int8": quantise(graph, images[::2]),
            }
            engines, sizes = {}, {}
            for name, version in versions.items():
                content = put_card(version.SerializeToString(), card)
                sizes[name] = len(content)
                file = ModelFile.parse(Path(folder) / f"{name}.onnx", content)
                engines[name] = open_engine(file, EngineSettings(device="cpu", threads=1))
            results = measure(engines, images[1::2], options.rounds)
            base = results["fp32"][1]
            for name, (agreement, seconds) in results.items():
                print(
                    f"{card.name:10} {name:13} {sizes[name] / 1e3:6.0f} {agreement:18.3%} {base / seconds:14.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
