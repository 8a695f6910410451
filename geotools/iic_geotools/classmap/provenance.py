"""What a map says in its metadata about the work that made it, and the labels that its model has seen."""

from collections.abc import Mapping, Sequence

FINGERPRINT_TAG = "IIC_WORK"
"""The metadata item that ties a map to the work that made it; a changed copy does not have it."""
LABELS_TAG = "IIC_LABELS"
"""The metadata item that says which labels the model has seen."""
PLACES_TAG = "IIC_LABELLED_PLACES"
"""The metadata item with the points that named the model: longitude and latitude of each."""

NAMED_BY = "named by "
"""How the text about labels begins if they only named the model's classes; otherwise the model has learnt from them."""


def format_places(places: Sequence[tuple[float, float]]) -> str:
    """Longitudes and latitudes as a metadata item."""
    return " ".join(f"{longitude:.7f},{latitude:.7f}" for longitude, latitude in places)


def labels_to_beware_of(tags: Mapping[str, str]) -> str:
    """The labels that the model of a map has seen at places that its metadata does not list; empty for none."""
    labels = tags.get(LABELS_TAG, "")
    return "" if labels.startswith(NAMED_BY) and read_places(tags) else labels


def read_places(tags: Mapping[str, str]) -> list[tuple[float, float]]:
    """Longitudes and latitudes of the points that named the model of a map; none if its metadata lists none."""
    try:
        pairs = [entry.split(",") for entry in tags.get(PLACES_TAG, "").split()]
        return [(float(longitude), float(latitude)) for longitude, latitude in pairs]
    except ValueError:
        return []
