"""Put a page that maps in the browser next to the documentation, if its libraries can be had."""

import logging
from pathlib import Path
from typing import Any

from iic_geotools.errors import IICError
from iic_runtime.page.site import vendored_files, write_page

_LOG = logging.getLogger("mkdocs")
_PLACE = "<!-- try it -->"
_EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "sentinel2.tif"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Link to the page where it is hosted, or say that it is not."""
    if _PLACE not in markdown:
        return markdown
    try:
        vendored_files()
        text = '<p><a href="../try/"><b>Try it here</b></a>, on your own device.</p>'
    except IICError as error:
        _LOG.info("The page is not hosted with this documentation: %s", error)
        text = "*This copy of the documentation was built without npm, so that it does not host the page.*"
    return markdown.replace(_PLACE, text)


def on_post_build(config: Any) -> None:
    """Write the page."""
    try:
        vendored_files()
    except IICError:
        return
    write_page("satellite", Path(config["site_dir"]) / "try", example=_EXAMPLE, overwrite=True)
