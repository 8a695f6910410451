"""Processes that were forked after GDAL had started threads."""

import os
import signal
import time
from pathlib import Path

import pytest
from support.maps import make_classes, random_labels, write_map

from iic_geotools.products.cleaning import clean_map


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_writes_maps_too(tmp_path: Path) -> None:
    source = write_map(tmp_path / "m.tif", random_labels(1500, 1500, 4, patch=9), classes=make_classes(4))
    clean_map(source, tmp_path / "before.tif", majority=1, co={"NUM_THREADS": "4"})
    child = os.fork()
    if not child:
        clean_map(source, tmp_path / "after.tif", majority=1, co={"NUM_THREADS": "4"})
        os._exit(0)
    end = time.monotonic() + 120
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.1)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
    assert (tmp_path / "after.tif").read_bytes() == (tmp_path / "before.tif").read_bytes()
