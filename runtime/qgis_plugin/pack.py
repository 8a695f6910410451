"""Pack the QGIS plugin into the zip file that QGIS installs: `python runtime/qgis_plugin/pack.py [OUT.zip]`.

The zip holds the wheel of this clone, which the plugin installs on first use: plugin and package cannot differ.
"""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
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


def build(folder: Path) -> Path:
    """Build the wheel into a folder and return its path."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob("iic_edge-*.whl"))


def pack(out: Path, wheel: Path | None = None) -> Path:
    """Write the zip file and return its path.

    Args:
        out: The zip file.
        wheel: The wheel to include; without one, algorithms need the path of a command in the settings.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(out, "w", ZIP_DEFLATED) as archive:
        for file in sorted(PLUGIN.iterdir()):
            if file.suffix in (".py", ".txt"):
                content = file.read_bytes().replace(b"@VERSION@", version().encode())
                archive.writestr(f"{PLUGIN.name}/{file.name}", content)
        archive.write(ROOT / "LICENSE", f"{PLUGIN.name}/LICENSE")
        if wheel is not None:
            archive.write(wheel, f"{PLUGIN.name}/{wheel.name}")
    return out


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist" / "iic-segment-qgis.zip")
    with TemporaryDirectory() as temporary:
        file = pack(target, build(Path(temporary)))
    sys.stdout.write(f"{file}\n")
