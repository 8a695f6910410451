"""Pack the QGIS plugin as the zip that QGIS installs: `python runtime/qgis_plugin/pack.py [OUT.zip]`."""

import re
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLUGIN = HERE / "iic_segment"


def version() -> str:
    """The version of iic-edge, which is the plugin's too."""
    text = (ROOT / "geotools/iic_geotools/__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise SystemExit("iic_geotools/__init__.py names no version.")
    return found[1]


def pack(out: Path) -> Path:
    """Write the zip."""
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
    made = pack(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist" / "iic-segment-qgis.zip"))
    sys.stdout.write(f"{made}\n")
