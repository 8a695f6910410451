import numpy as np
import torch

from iic_train.views.painting import paint
from iic_train.views.settings import Painting

WATER = Painting("water", 1.0, 0.5, ((0.02, 0.03, 0.03, 0.005), (0.05, 0.06, 0.04, 0.01)))


def test_painted_pixels_are_dark_in_infrared_and_the_rest_stays() -> None:
    image = torch.full((4, 40, 40), 0.7)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(12):
        changed, painted = paint(WATER, image, rng)
        shares.append(float(painted.float().mean()))
        assert changed.isfinite().all()
        if painted.all():
            assert changed[3].mean() < changed[1].mean()
        edge = torch.nn.functional.max_pool2d(painted[None, None].float(), 3, 1, 1)[0, 0].bool()
        assert torch.equal(changed[:, ~edge], image[:, ~edge])
    assert max(shares) == 1.0
    assert min(shares) < 0.9
