"""Local vector files that refer to addresses: no request, also where a host needs no proxy."""

from pathlib import Path

import pytest
from support.server import serve

from iic_geotools.errors import SceneError
from iic_geotools.scene.vectors import read_shapes

FILES = {
    "a.vrt": '<OGRVRTDataSource><OGRVRTLayer name="x"><SrcDataSource>{}/x.json</SrcDataSource></OGRVRTLayer>'
    "</OGRVRTDataSource>",
    "a.xml": "<OGRWFSDataSource><URL>{}/wfs?</URL></OGRWFSDataSource>",
}


@pytest.mark.parametrize("name", FILES)
def test_a_vector_file_reaches_no_address(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serve() as server:
        (tmp_path / name).write_text(FILES[name].format(server.address))
        with pytest.raises(SceneError, match="cannot be read"):
            read_shapes(tmp_path / name, "The labels", None)
        assert server.requests == []
        monkeypatch.setenv("IIC_ALLOW_NETWORK", "1")
        with pytest.raises(SceneError):
            read_shapes(tmp_path / name, "The labels", None)
        assert server.requests
