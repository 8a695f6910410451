from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iic_geotools.errors import DataError
from iic_train.data.coco import class_table
from iic_train.data.training_data import open_dataset

SKY, PLANT, GROUND, WATER, PERSON, NONE = 106 - 1, 169 - 1, 149 - 1, 155 - 1, 1 - 1, 255


def save(root: Path, split: str, name: str, values: np.ndarray, colour: tuple[int, int, int]) -> None:
    folder = root / "coco-stuff-164k"
    for kind in ("images", "annotations"):
        (folder / kind / split).mkdir(parents=True, exist_ok=True)
    picture = np.broadcast_to(np.array(colour, np.uint8), (*values.shape, 3))
    Image.fromarray(picture).save(folder / "images" / split / f"{name}.jpg", quality=95)
    Image.fromarray(values.astype(np.uint8)).save(folder / "annotations" / split / f"{name}.png")


def halves(top: int, bottom: int, shape: tuple[int, int] = (400, 600)) -> np.ndarray:
    values = np.full(shape, bottom)
    values[: shape[0] // 2] = top
    return values


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save(tmp_path, "train2017", "000000000001", halves(SKY, GROUND), (250, 10, 10))
    save(tmp_path, "train2017", "000000000002", halves(SKY, NONE), (10, 10, 10))
    save(tmp_path, "train2017", "000000000003", halves(PLANT, WATER), (10, 250, 10))
    save(tmp_path, "train2017", "000000000004", halves(SKY, GROUND, (359, 600)), (10, 10, 10))
    save(tmp_path, "val2017", "000000000005", halves(SKY, PLANT, (360, 640)), (10, 10, 250))
    values = halves(PLANT, GROUND)
    values[-40:] = PERSON
    save(tmp_path, "val2017", "000000000006", values, (10, 10, 10))
    return tmp_path


def test_every_stuff_category_has_one_class() -> None:
    table = class_table("coco-stuff")
    assert np.all(table[91:182] < 15)
    assert np.all(np.delete(table, slice(91, 182)) == 255)
    assert set(table[91:182]) == set(range(15))
    few = class_table("coco-stuff-3")
    assert [few[v] for v in (SKY, PLANT, GROUND, WATER, PERSON, NONE)] == [0, 1, 2, 255, 255, 255]


def test_images_are_chosen_and_unlabelled_is_not_sky(root: Path) -> None:
    data = open_dataset("coco-stuff-3", root)
    # 2 is half unlabelled, 3 half water, 4 too small
    assert len(data.train_b) == 3
    assert data.dense
    label = data.train_b.label(2)
    assert isinstance(label, np.ndarray)
    assert label.shape == (132, 198)
    assert set(np.unique(label)) == {1, 2, 255}
    assert np.array_equal(data.train_b.valid(2), label != 255)
    fifteen = open_dataset("coco-stuff", root, overcluster=True)
    assert (len(fifteen.train_b), len(fifteen.map), len(fifteen.test)) == (2, 2, 2)


def test_channels_are_red_green_blue(root: Path) -> None:
    data = open_dataset("coco-stuff-3", root)
    assert data.channels == ("red", "green", "blue")
    assert data.train_b.image(0).mean((1, 2)) == pytest.approx([250, 10, 10], abs=4)


def test_small_images_are_padded_and_the_padding_masked(root: Path) -> None:
    data = open_dataset("coco-stuff-3", root)
    image, valid = data.train_b.image(1), data.train_b.valid(1)
    assert valid is not None
    assert image.shape[1:] == valid.shape == (128, 211)  # 360 px become 119
    assert not valid[:4].any()
    assert not valid[-5:].any()
    assert valid[4:-5].all()
    assert not image[:, :4].any()


def test_the_list_is_kept_and_the_authors_list_wins(root: Path) -> None:
    open_dataset("coco-stuff-3", root)
    curated = root / "coco-stuff-164k" / "curated" / "train2017"
    assert (curated / "coco-stuff-3.txt").read_text().split() == ["000000000001"]
    (curated / "Coco164kFew_Stuff_6.txt").write_text("000000000002\n000000000004\n")
    assert len(open_dataset("coco-stuff-3", root, overcluster=True).train_b) == 2


def test_missing_data(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DataError, match=r"stuffthingmaps_trainval2017\.zip"):
        open_dataset("coco-stuff", tmp_path / "elsewhere")
    (root / "coco-stuff-164k" / "images" / "train2017" / "000000000001.jpg").unlink()
    with pytest.raises(DataError, match="incomplete"):
        open_dataset("coco-stuff-3", root).train_b.image(0)
