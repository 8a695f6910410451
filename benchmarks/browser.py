"""The page of `iic-model page` in headless Chromium against the runtime: speed, labels that differ, memory of the page.

    python benchmarks/browser.py [--models aerial satellite] [--sides 1024 3072] [--threads 1 2]

The scene is the example, repeated. Needs Chromium, and npm or a cache that holds the page's libraries.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import rasterio

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from support.browser import Browser, open_browser  # noqa: E402
from support.page import download, drop, finish, serve  # noqa: E402

from iic_runtime import segment_raster  # noqa: E402
from iic_runtime.page.site import write_page  # noqa: E402

EXAMPLES = {"aerial": "scene.tif", "satellite": "sentinel2.tif"}


def write_scene(path: Path, model: str, side: int) -> None:
    """Write the example of a model, repeated to a square, which says all that would be asked."""
    with rasterio.open(ROOT / "examples" / EXAMPLES[model]) as example:
        values, profile, names = example.read(), example.profile, example.descriptions
    _, height, width = values.shape
    values = np.tile(values, (1, -(-side // height), -(-side // width)))[:, :side, :side]
    profile.update(width=side, height=side, tiled=True, blockxsize=512, blockysize=512, compress="deflate")
    with rasterio.open(path, "w", **profile) as dataset:
        dataset.write(values)
        dataset.descriptions = names
        if model == "satellite":
            dataset.scales = (1e-4,) * len(names)


def peak_memory(browser: Browser) -> float:
    """Return the most MB that a process of the page has taken."""
    peaks = [
        int(Path(f"/proc/{process}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
        for process in browser.renderers()
    ]
    return max(peaks)


def measure(folder: Path, model: str, side: int, threads: int) -> None:
    """Map a scene in the page and by the runtime, and print what differs."""
    scene, expected = folder / f"{model}-{side}.tif", folder / f"{model}-{side}-expected.tif"
    if not expected.exists():
        write_scene(scene, model, side)
        begin = time.perf_counter()
        segment_raster(scene, expected, model, match_gsd=False)
        speed = side * side / 1e6 / (time.perf_counter() - begin)
        print(f"{model:10} {side:6} px  runtime, all cores: {speed:.2f} Mpx/s file to file", flush=True)
    site = folder / model
    if not site.exists():
        write_page(model, site)
    with serve(site) as address, open_browser(folder / f"profile-{model}-{side}-{threads}") as browser:
        browser.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source=f"Object.defineProperty(navigator, 'hardwareConcurrency', {{ get: () => {threads} }})",
        )
        browser.open(address, 1280, 800)
        drop(browser, scene)
        finish(browser)
        numbers = browser.evaluate("({...document.body.dataset})")
        memory = peak_memory(browser)
        written = download(browser, "tif", folder)
    with rasterio.open(written) as ours, rasterio.open(expected) as theirs:
        differing = int(np.count_nonzero(ours.read(1) != theirs.read(1)))
    pixels = float(numbers["pixels"]) / 1e6
    print(
        f"{model:10} {side:6} px  page, {numbers['threads']} threads, tiles of {numbers['tile']} px: "
        f"{pixels / float(numbers['seconds']):.2f} Mpx/s file to file, {pixels / float(numbers['inference']):.2f} "
        f"in the engine; {differing} of {side * side} labels differ; {memory:.0f} MB",
        flush=True,
    )
    written.unlink()


def main() -> None:
    """Measure each combination."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(EXAMPLES))
    parser.add_argument("--sides", nargs="+", type=int, default=[1024, 3072])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models:
            for side in arguments.sides:
                for threads in arguments.threads:
                    measure(Path(folder), model, side, threads)


if __name__ == "__main__":
    main()
