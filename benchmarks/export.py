"""What a lower precision costs and brings: size, labels that stay the same, and speed on this CPU.

    python benchmarks/export.py [--networks 10a edge-4] [--scene SCENE.tif] [--steps 20] [--threads 2]

trains each network for a few steps (the weights only have to be sensible), exports it in fp32, fp16 and int8, and
runs the files through the runtime's own engine. Without --scene it makes one.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import rasterio

from iic_export import export
from iic_runtime.engine.open_engine import open_engine
from iic_runtime.model.file import ModelFile
from iic_runtime.options import EngineSettings

BANDS = ("red", "green", "blue", "nir")
SIDE = 512
ROUNDS = 5


def made_scene(path: Path, side: int = 1024) -> Path:
    """Patches of five materials with their own spectra and textures, edges ragged."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side]
    field = sum(
        np.sin(rng.normal(0, 0.03) * x + rng.normal(0, 0.03) * y + rng.uniform(0, 6)) for _ in range(9)
    )
    kind = np.digitize(field + rng.normal(0, 0.1, field.shape), [-2, -0.7, 0.7, 2])
    spectra, roughness = rng.uniform(40, 210, (5, 4)), rng.uniform(4, 30, 5)
    values = spectra[kind].transpose(2, 0, 1) + rng.normal(0, 1, (4, side, side)) * roughness[kind]
    with rasterio.open(
        path, "w", driver="GTiff", count=4, height=side, width=side, dtype="uint8", crs="EPSG:32631",
        transform=rasterio.Affine(0.5, 0, 500000, 0, -0.5, 5400000),
    ) as out:  # fmt: skip
        out.write(np.clip(values, 1, 254).astype(np.uint8))
        out.descriptions = BANDS
    return path


def train(network: str, scene: Path, runs: Path, steps: int) -> Path:
    """A run of a few steps."""
    from iic_train.config import DataConfig, TrainConfig
    from iic_train.data.survey import survey_scenes
    from iic_train.models.registry import NetworkConfig
    from iic_train.trainer import train as run_training
    from iic_train.views.settings import DensePairs

    data = DataConfig("rasters", scenes=(str(scene),))
    survey = survey_scenes(data, BANDS)
    config = TrainConfig(
        preset=network,
        data=data,
        network=NetworkConfig(network, BANDS, 6, 24, 1, offset=survey.offset, scale=survey.scale),
        pairs=DensePairs(flip_vertical=0.5, turn=0.5),
        size=64,
        epochs=1,
        batch=8,
        steps=steps,
        lr=1e-3,
        radius=1,
        selection_steps=8,
    )
    return run_training(config, runs=runs, device="cpu", survey=survey).path


def megapixels_per_second(model: Path, image: np.ndarray, threads: int | None) -> float:
    """Megapixels a CPU second, the best of a few runs over a part of the scene: other work does not count."""
    engine = open_engine(ModelFile.read(model), EngineSettings(device="cpu", threads=threads))
    taken = []
    for _ in range(ROUNDS + 1):
        begun = time.process_time()
        engine.run(image, True)
        taken.append(time.process_time() - begun)
    return image.shape[-2] * image.shape[-1] / 1e6 / min(taken[1:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=["10a", "edge-4"])
    parser.add_argument("--scene", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    print(
        f"{'network':8} {'file':5} {'size':>9} {'labels = trained':>17} {'Mpx/CPU s':>9} {'x fp32':>7} {'bytes/px':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        scene = options.scene or made_scene(Path(folder) / "scene.tif")
        with rasterio.open(scene) as dataset:
            image = dataset.read(window=rasterio.windows.Window(0, 0, SIDE, SIDE))[None, : len(BANDS)]
        for network in options.networks:
            run = train(network, scene, Path(folder) / "runs", options.steps)
            base = None
            for precision in ("fp32", "fp16", "int8"):
                made = export(
                    run, Path(folder) / f"{network}-{precision}.onnx", precision=precision, min_agreement=0
                )
                speed = megapixels_per_second(made.path, image, options.threads)
                base = base or speed
                print(
                    f"{network:8} {precision:5} {made.path.stat().st_size / 1e6:6.2f} MB {made.parity.agreement:17.4%} "
                    f"{speed:9.3f} {speed / base:7.2f} {made.card.memory_per_pixel:9}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
