"""What parts and maps were made from: a run resumes only with parts of the same work, and keeps only its own maps."""

import json
from dataclasses import asdict
from hashlib import sha256
from typing import Any

from iic_geotools.gdal import is_text
from iic_runtime.raster.plan import Plan


def parts_manifest(plan: Plan) -> dict[str, Any]:
    """Return what parts must have been made from, so that a run may resume with them."""
    return _labels(plan) | _cut(plan)


def fingerprint(plan: Plan) -> str:
    """Return a hash of what decides the content of the outputs, which does not depend on the tiling."""
    labels = _labels(plan)
    del labels["confidence"], labels["grid"]["tile"]
    # The files are identified by their full names: how the scene's name is written does not matter. The text of a
    # virtual raster does: it says which bands of them are read, and under which mask.
    if not is_text(plan.reading.path):
        del labels["source"]["path"]
    outputs = plan.outputs
    products = [outputs.products.min_area, outputs.products.simplify, asdict(outputs.cleaning)]
    writing: list[Any] = [_cut(plan), dict(outputs.creation), products]
    if outputs.zones is not None:
        # Imported here because few runs need it and what it imports.
        from iic_geotools.products.zones import zones_digest

        writing.append(zones_digest(outputs.zones))
    return sha256(json.dumps([labels, writing], sort_keys=True).encode()).hexdigest()


def _labels(plan: Plan) -> dict[str, Any]:
    """Return what decides the labels on the grid that the scene is read on."""
    reading = plan.reading
    return {
        "package": plan.version,
        "files": plan.sources and [[source.name, *source.version] for source in plan.sources],
        "source": {
            "path": reading.path,
            "bidx": reading.bidx,
            "dtype": reading.dtype,
            "nodata": repr(reading.nodata),
            "masked": reading.masked,
            "fill": reading.fill,
            "optional": [asdict(band) for band in reading.optional],
            "rescale": reading.rescale and asdict(reading.rescale),
            "grid": reading.grid and [reading.grid.width, reading.grid.height, *reading.grid.transform],
        },
        "grid": asdict(plan.tiles),
        "area": plan.tile_area and plan.tile_area.digest,
        "model": plan.model_digest,
        "provider": plan.provider,
        "unsure": plan.unsure and asdict(plan.unsure),
        "confidence": "confidence" in plan.layers,
    }


def _cut(plan: Plan) -> dict[str, Any]:
    """Return what the map is cut to, on the scene's own grid."""
    return {"region": asdict(plan.region), "area": plan.area and plan.area.digest}
