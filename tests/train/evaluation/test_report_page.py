import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import torch
from PIL import Image

from iic_train.data.base import Arrays, Dataset
from iic_train.evaluation.evaluate import evaluate_clusters
from iic_train.evaluation.plots import Series, line_chart
from iic_train.evaluation.report import (
    HeadEpoch,
    Story,
    chart_page,
    cluster_pictures,
    map_pictures,
    report_page,
    visible,
)


def epochs(clusters: int, *, accuracy: bool) -> list[HeadEpoch]:
    rng = np.random.default_rng(clusters)
    return [
        HeadEpoch(
            epoch,
            loss=[-0.1 * epoch, -0.2 * epoch],
            information=[0.1 * epoch, 0.2 * epoch],
            entropy=[1.0, 1.1],
            occupancy=rng.dirichlet(np.ones(clusters), 2),
            accuracy=[0.5, 0.6] if accuracy else None,
        )
        for epoch in (1, 2, 3)
    ]


class Titles(HTMLParser):
    """Collects headings, chart titles and addresses of anything that would be fetched."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] in ("h1", "h2", "text", "b"):
            self.texts.append(data)


def test_a_run_with_labels() -> None:
    labels = np.arange(40) % 4
    part = Arrays(np.broadcast_to(labels[:, None, None, None], (40, 1, 2, 2)).astype("u1"), labels, ("grey",))
    data = Dataset(
        "toy", False, part, part, map=part, test=part, classes=("road", "roof <flat>", "tree", "field")
    )
    evaluation = evaluate_clusters(
        lambda x: torch.stack([x[:, 0, 0, 0] * 0, x[:, 0, 0, 0]]), data, 4, chosen=1
    )
    chosen = np.arange(0, 40, 2)
    pictures = cluster_pictures(np.eye(4)[labels[chosen]], labels[chosen], data.classes)
    story = Story(
        title="toy & run",
        facts={"preset": "toy"},
        heads={"a": epochs(12, accuracy=False), "b": epochs(4, accuracy=True)},
        chosen=1,
        evaluation=evaluation.to_json(),
        pictures=pictures,
        config={"network": {"name": "6c"}, "seed": 3},
    )
    page = report_page(story)
    titles = Titles(page)
    assert "100.0 %" in titles.texts
    for expected in (
        "toy & run",
        "Loss of head A (overclustering)",
        "Information of head B (main), nats",
        "roof <flat>",
    ):
        assert expected in titles.texts
    assert sum(text.startswith("Accuracy of head") for text in titles.texts) == 1
    assert "network.name" in page
    assert {"1 %", "5 %", "100 %"} <= set(titles.texts)  # shares of the labels
    assert all(address.startswith("data:") for address in titles.addresses)
    assert not re.search(r"<script|@import|url\(", page)


def test_a_run_that_was_not_evaluated_says_so() -> None:
    page = report_page(Story("bare", {}, {"b": epochs(3, accuracy=False)}))
    assert "Not evaluated" in page
    assert "Accuracy of" not in page
    assert len(re.findall("<polygon", page)) == 3


class Scenes:
    channels: tuple[str, ...] = ("red", "green", "blue", "nir")

    def __len__(self) -> int:
        return 9

    def image(self, index: int) -> np.ndarray:
        return np.full((4, 6, 8), index * 20, np.uint16)

    def label(self, index: int) -> None:
        return None

    def valid(self, index: int) -> np.ndarray | None:
        valid = np.zeros((6, 8), bool)
        valid[:, 4:] = True
        return valid if index else None


def test_pictures_of_maps_have_a_legend_and_infrared() -> None:
    rows = map_pictures(
        lambda x: x[0, 0].long() % 3, Scenes(), ["road", "roof", "tree"], lambda raw: raw / 200
    )
    assert len(rows) == 8
    assert rows[0].count('class="key"') == 3
    assert all(row.count("<img") == 3 for row in rows[1:-1])


def test_clusters_are_shown_where_they_take_the_largest_part() -> None:
    class Halves(Scenes):
        """A green and a red half, and a sliver at the edge."""

        channels = ("red", "green", "blue")

        def __len__(self) -> int:
            return 2

        def image(self, index: int) -> np.ndarray:
            values = np.zeros((3, 64, 4 if index else 64), np.uint8)
            values[0, :, 32:], values[1, :, :32] = 200, 200
            return values

        def valid(self, index: int) -> None:
            return None

    rows = map_pictures(
        lambda x: (x[0, 0] > 0).long(), Halves(), ["grass", "tiles", "none"], lambda raw: raw / 200
    )
    assert len(rows) == 3  # legend, one image, examples
    assert rows[-1].count("<tr>") == 2
    assert rows[-1].count("100 %</figcaption>") == 4
    red = base64.b64decode(re.findall(r"base64,([^\"]+)", rows[-1])[-1])
    assert np.allclose(np.asarray(Image.open(io.BytesIO(red)))[16, 16], (255, 0, 0), atol=4)


def test_pixels_without_data_are_grey_in_the_map() -> None:
    rows = map_pictures(lambda x: x[0, 0].long() * 0, Scenes(), ["road"], lambda raw: raw / 200)
    maps = [base64.b64decode(re.findall(r"base64,([^\"]+)", row)[-1]) for row in rows[1:-1]]
    first, second = (np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in maps[:2])
    assert len(np.unique(first.reshape(-1, 3), axis=0)) == 1
    assert (second[:, :4] == 200).all()
    assert np.array_equal(second[:, 4:], first[:, 4:])


def test_visible_bands() -> None:
    scaled = np.stack([np.full((2, 2), value) for value in (0.0, 0.5, 2.0)])
    assert visible(scaled, ("blue", "green", "red"))[0, 0].tolist() == [255, 128, 0]
    assert visible(scaled, ("nir", "swir", "thermal"))[0, 0].tolist() == [0, 0, 0]


def test_a_page_of_charts() -> None:
    charts = [line_chart(name, [Series("a", [(0, 0.5), (1, 0.9)], "#123456")]) for name in ("one", "two")]
    page = chart_page("Labels & clusters", charts)
    assert page.count("<svg") == 2
    assert "Labels &amp; clusters" in page
