"""Addresses of models, and size-limited, checksum-verified downloads."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException, HTTPMessage
from pathlib import PurePosixPath
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, quote, urldefrag, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from iic_geotools import __version__
from iic_geotools.errors import ModelError, UsageError

TIMEOUT = 20.0
"""Seconds that a server may let us wait for a connection, or for anything more."""
LEAST_SPEED = 1000
"""Bytes per second below which a download is given up, once the timeout has passed."""
LONGEST = 3600.0
"""The most seconds that a download may take."""
DIGEST = re.compile(r"[0-9a-f]{64}")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_CHUNK = 1 << 16
_RESERVED = "/%:@!$&'()*+,;=~?[]"


def is_address(name: str) -> bool:
    """Return whether a name is an address of any kind, not a file."""
    return _ADDRESS.match(name) is not None


@dataclass(frozen=True)
class Address:
    """Where something is downloaded from.

    Attributes:
        url: The address, without a fragment.
        digest: The SHA-256 that the content must have; None if any content is taken.
    """

    url: str
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read an address, which may end in `#sha256=` and the digest of the content."""
        url, fragment = urldefrag(text.strip())
        key, equals, digest = fragment.partition("=")
        if fragment and (key.lower() != "sha256" or not equals or not DIGEST.fullmatch(digest.lower())):
            raise UsageError(
                f"{_shown(url)} may be followed by #sha256= and 64 hexadecimal digits, not by #{fragment[:80]}."
            )
        address = cls(_encode(url), digest.lower() or None)
        address.check(address.url)
        return address

    @property
    def shown(self) -> str:
        """The address for messages, without what may be a password or a token."""
        return _shown(self.url)

    @property
    def name(self) -> str:
        """The name of the file."""
        return PurePosixPath(_split(self.url).path).name or "model"

    def check(self, url: str) -> None:
        """Refuse an address that cannot be trusted: this one, or one that a server refers to instead.

        Without encryption anybody on the way can change what is sent, which shows only if its digest is known.
        """
        parts = _split(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise UsageError(f"{_shown(url)} is not an address of a model: it must begin with https://.")
        if "@" in parts.netloc:
            raise UsageError(f"{_shown(url)} must not hold a name or a password.")
        near = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme == "http" and self.digest is None and not near:
            raise UsageError(
                f"{_shown(url)} is not encrypted, so that anybody on the way can change it: use https://, or put "
                "#sha256= and the digest of the file behind it."
            )

    def download(self, limit: int) -> bytes:
        """Download the content.

        Args:
            limit: The most bytes that it may have.
        """
        with self._errors():
            request = Request(self.url, headers={"User-Agent": f"iic-edge/{__version__}"})
            with build_opener(_Redirects(self)).open(request, timeout=TIMEOUT) as response:
                content = self._read(response, limit)
        if self.digest is not None and sha256(content).hexdigest() != self.digest:
            raise ModelError(
                f"{self.shown} holds another file than the digest says ({sha256(content).hexdigest()} instead of "
                f"{self.digest}): it has changed, or was tampered with."
            )
        return content

    def _read(self, response: Any, limit: int) -> bytes:
        announced = response.headers.get("Content-Length", "")
        size = int(announced) if announced.isdecimal() else None
        content = bytearray()
        begun = time.monotonic()
        while (size or 0) <= limit and len(content) <= limit:
            chunk = response.read1(_CHUNK)
            if not chunk:
                if size is not None and len(content) != size:
                    raise ModelError(
                        f"The download of {self.shown} ended after {len(content)} of {size} bytes; try again."
                    )
                return bytes(content)
            content += chunk
            seconds = time.monotonic() - begun
            if seconds > LONGEST or (seconds > TIMEOUT and len(content) < LEAST_SPEED * seconds):
                raise ModelError(f"The server of {self.shown} is too slow; try again later.")
        raise ModelError(f"{self.shown} has more than the {limit >> 20} MB that a download may have.")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the network into sentences."""
        try:
            yield
        except HTTPError as error:
            error.close()
            raise ModelError(
                f"{self.shown} cannot be downloaded: the server answers {error.code} "
                f"{str(error.reason).partition(chr(10))[0][:100].rstrip('.')}; check the address."
            ) from error
        except TimeoutError as error:
            raise self._stalled() from error
        except URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._stalled() from error
            raise self._failed(error.reason) from error
        except (UsageError, ModelError):
            raise
        except (HTTPException, OSError, ValueError) as error:
            raise self._failed(error) from error

    def _stalled(self) -> ModelError:
        return ModelError(f"The server of {self.shown} did not answer within {TIMEOUT:g} s; try again later.")

    def _failed(self, reason: object) -> ModelError:
        text = str(getattr(reason, "strerror", None) or reason or type(reason).__name__).rstrip(".")
        return ModelError(f"{self.shown} cannot be downloaded ({text[:200]}); check address and network.")


class _Redirects(HTTPRedirectHandler):
    """Follows redirects only to addresses that would be accepted themselves."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        self._address.check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port  # both are read only when they are asked for
    except ValueError as error:
        raise UsageError(f"{url[:80]!r} is not an address ({error}).") from error
    if not url.isprintable() or " " in url:
        raise UsageError(f"{url[:80]!r} is not an address: it holds characters that none can have.")
    return parts


def _encode(url: str) -> str:
    """Percent-encode the non-ASCII letters of an address."""
    parts = _split(url)
    return urlunsplit(
        parts._replace(path=quote(parts.path, safe=_RESERVED), query=quote(parts.query, safe=_RESERVED))
    )


def _shown(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"[:200]
