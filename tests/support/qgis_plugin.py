"""The QGIS plugin outside of QGIS: its modules, and the commands that it starts."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PLUGIN = Path(__file__).parents[2] / "runtime" / "qgis_plugin"


def load(name: str, file: Path) -> ModuleType:
    spec = spec_from_file_location(name, file)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_commands(folder: Path) -> Path:
    """Write iic-segment-raster as it is installed, a script of another Python, and the others next to it."""
    _write_script(folder / "iic-map", "iic_geotools.cli.map")
    _write_script(folder / "iic-model", "iic_runtime.cli.model")
    return _write_script(folder / "iic-segment-raster", "iic_runtime.cli.segment_raster")


def _write_script(script: Path, module: str) -> Path:
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    script.write_text(
        f"#!/bin/sh\n[ -z \"$PYTHONPATH$PROJ_LIB\" ] || echo 'the environment of QGIS leaks' >&2\n"
        f'export PYTHONPATH="{path}"\n'
        # what a shell starts in the background is deaf to SIGINT
        f'exec "{sys.executable}" -c "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); '
        f'from {module} import main; main()" "$@"\n'
    )
    script.chmod(0o755)
    return script
