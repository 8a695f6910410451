"""A job: everything that decides a map's pixels, as plain data that another process can take up."""

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from iic_geotools import __version__
from iic_geotools.grid import Grid, Part
from iic_geotools.regions import Area
from iic_geotools.scene import SceneSource

# A part is held in memory until it is written, and is what a killed run loses at most.
PART_PIXELS = 4 << 20


@dataclass(frozen=True)
class Job:
    """Label `grid` of `source` with one model, within `area` if there is one."""

    source: SceneSource
    files: tuple[str, ...]
    grid: Grid
    area: Area | None
    model_digest: str
    provider: str
    confidence: bool

    def parts(self) -> list[Part]:
        """The pieces the map is made of, but those of which the scene itself says that nothing is there."""
        every = self.grid.parts(max(1, PART_PIXELS // self.grid.tile**2))
        with self.source.open() as scene:
            return [
                part
                for part in every
                if scene.may_hold_data(part.rect) and (self.area is None or self.area.touches(part.rect))
            ]

    def manifest(self) -> dict[str, Any]:
        """What parts must have been made from to be taken up again."""
        source = self.source
        return {
            "package": __version__,
            "files": [_identity(file) for file in self.files],
            "source": {
                **{
                    key: getattr(source, key) for key in ("path", "bidx", "dtype", "nodata", "masked", "fill")
                },
                "rescale": source.rescale and asdict(source.rescale),
                "grid": source.grid and [source.grid.width, source.grid.height, *source.grid.transform],
            }
            | {"nodata": repr(source.nodata)},
            "grid": asdict(self.grid),
            "area": self.area and self.area.digest,
            "model": self.model_digest,
            "provider": self.provider,
            "confidence": self.confidence,
        }

    def work(self, *more: Any) -> str:
        """A hash of what decides the map, however it was tiled, and of `more` that shapes the files made of it."""
        deciding = self.manifest()
        # The files are named whole: how the scene's own name was spelled does not matter.
        del deciding["confidence"], deciding["grid"]["tile"], deciding["source"]["path"]
        return sha256(json.dumps([deciding, more], sort_keys=True).encode()).hexdigest()


def _identity(file: str) -> list[Any]:
    """What changes when a file does; a file that is not on a disk is known by its name only."""
    try:
        status = Path(file).stat()
    except OSError:
        return [file]
    return [str(Path(file).resolve()), status.st_size, status.st_mtime_ns]
