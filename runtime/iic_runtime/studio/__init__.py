"""Teaching a map with clicks: a session of clicks on a scene, and the page in a browser that shows it."""

from iic_runtime.studio.clicks import Click as Click
from iic_runtime.studio.session import Session as Session
