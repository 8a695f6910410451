"""Pack the QGIS plugin into the zip file that QGIS installs: `python runtime/qgis_plugin/pack.py [OUT.zip]`."""

import re
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLUGIN = HERE / "iic_segment"


def version() -> str:
    """Return the version of iic-edge, which is that of the plugin, too."""
    text = (ROOT / "geotools/iic_geotools/__init__.py").read_text()
    match = re.search(r'__version__ = "([^"]+)"', text)
    if match is None:
        raise SystemExit("iic_geotools/__init__.py does not state the version.")
    return match[1]


def pack(out: Path) -> Path:
    """Write the zip file and return its path."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for file in sorted(PLUGIN.iterdir()):
            if file.suffix in (".py", ".txt"):
                archive.writestr(
                    f"{PLUGIN.name}/{file.name}", file.read_text().replace("@VERSION@", version())
                )
        archive.writestr(f"{PLUGIN.name}/LICENSE", (ROOT / "LICENSE").read_text())
    return out


if __name__ == "__main__":
    file = pack(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist" / "iic-segment-qgis.zip"))
    sys.stdout.write(f"{file}\n")
