"""Small files read from web servers, such as STAC items; GDAL reads the rasters."""

import time
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit

from iic_geotools import __version__
from iic_geotools.errors import SceneError

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from urllib.request import Request

TIMEOUT = 10.0
"""Seconds that a server may be silent."""
LEAST_SPEED = 1000
"""Bytes per second below which an answer is given up, once `TIMEOUT` has passed."""
LONGEST = 600.0
"""The most seconds that an answer may take."""
LARGEST = 64 << 20
"""The most bytes that are read."""
RETRY_AFTER = (1.0, 2.0, 4.0)
"""Seconds after which a server that is busy is asked again."""
BUSY = (429, 502, 503, 504)
_CHUNK = 1 << 16
# Some servers answer browsers only, or with a page for browsers.
HEADERS = {"User-Agent": f"iic-edge/{__version__}", "Accept": "application/geo+json, application/json, */*"}


def is_web(name: str) -> bool:
    """Whether a name is the address of something on a web server."""
    return name.lower().startswith(("http://", "https://"))


def fetch(address: str) -> bytes:
    """Read all of a small file of a web server."""
    # Imported here because few runs need them.
    from http.client import HTTPException
    from urllib.request import Request

    try:
        with send(Request(address, headers=HEADERS)) as answer:
            content = read(answer)
    except HTTPError as error:
        error.close()
        reason = f"{error.code} {error.reason}"
        raise SceneError(f"{_short(address)} cannot be read ({reason}); check the address.") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = str(getattr(error, "reason", "") or error or type(error).__name__)
        raise SceneError(
            f"{_short(address)} cannot be read ({reason}); check the address, and that {urlsplit(address).netloc} "
            "can be reached."
        ) from error
    return content


def send(request: "Request") -> "HTTPResponse":
    """Send a request to a web server, retry while it is busy, and return the open response.

    Raises:
        HTTPError: The server refuses, or is still busy after the last time.
        OSError: The server cannot be reached, or does not answer.
        HTTPException: Its answer cannot be understood.
    """
    from urllib.request import urlopen

    for delay in (*RETRY_AFTER, None):
        try:
            answer: HTTPResponse = urlopen(request, timeout=TIMEOUT)
            break
        except HTTPError as error:
            if delay is None or error.code not in BUSY:
                raise
            error.close()
            time.sleep(delay)
    return answer


def read(answer: "HTTPResponse") -> bytes:
    """Read an answer of at most `LARGEST` bytes, within the limits of time and speed."""
    content = bytearray()
    begun = time.monotonic()
    while chunk := answer.read1(_CHUNK):
        content += chunk
        seconds = time.monotonic() - begun
        if len(content) > LARGEST:
            raise OSError(f"more than {LARGEST >> 20} MB; give a shorter list")
        if seconds > LONGEST or (seconds > TIMEOUT and len(content) < LEAST_SPEED * seconds):
            raise TimeoutError(f"the server sent {len(content)} bytes in {seconds:.0f} s")
    if answer.length:
        raise OSError(f"the answer ended {answer.length} bytes too early")
    return bytes(content)


def _short(address: str) -> str:
    """An address without its query, which may hold a token."""
    return address.partition("?")[0][:200]
