"""How many files a process holds open while it maps a mosaic; run in a process of its own, because GDAL decides once
per process how many it keeps."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from iic_geotools.work import Progress


def count_open_files(prefix: str) -> int:
    """Count the open files of this process whose names begin with a prefix."""
    names = []
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed in the meantime
            names.append(handle.readlink().name)
    return sum(name.startswith(prefix) for name in names)


def most_open_files(mosaic: Path, model: Path, out: Path, in_thread: bool) -> int:
    """Map a mosaic of files named piece-*, and return how many of them were open at most."""
    from iic_runtime import segment_raster

    most = 0

    def watch(progress: Progress) -> None:
        nonlocal most
        most = max(most, count_open_files("piece-"))

    def run() -> None:
        segment_raster(mosaic, out, model, bands=["1", "2", "3", "4"], device="cpu", tile=64, progress=watch)

    if in_thread:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()
    else:
        run()
    return most
