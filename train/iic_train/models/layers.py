"""The layers that networks are made of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iic_geotools.errors import UsageError
from iic_train.models.registry import Beside

LUMINANCE = {"red": 0.299, "green": 0.587, "blue": 0.114}


def band_slices(images: Tensor, bands: Sequence[int]) -> list[Tensor]:
    """Return bands of `[N, C, H, W]` in order, neighbours together.

    Indexing by a list would copy the list to the device at every call, and becomes an operator in an ONNX graph that
    engines run slowly or not at all.
    """
    runs: list[list[int]] = []
    for band in bands:
        if runs and band == runs[-1][1]:
            runs[-1][1] = band + 1
        else:
            runs.append([band, band + 1])
    return [images[:, first:end] for first, end in runs]


class Front(nn.Module):
    """Scaling by constants, and an optional Sobel filter or quantities next to the bands, before the trunk.

    The filter is applied to luminance only. Bands that are not colours, such as infrared, pass unchanged.
    """

    def __init__(
        self,
        channels: Sequence[str],
        offset: Sequence[float],
        scale: Sequence[float],
        *,
        sobel: bool,
        colour: bool,
        beside: Beside = "none",
    ) -> None:
        super().__init__()
        self.offset: Tensor
        self.factor: Tensor
        self.register_buffer("offset", torch.tensor(offset, dtype=torch.float32).view(-1, 1, 1))
        self.register_buffer("factor", torch.tensor(scale, dtype=torch.float32).view(-1, 1, 1))
        self.added: _Sobel | _Logarithms | _Ratios | SpectralFront | None = None
        if sobel:
            self.added = _Sobel(channels, colour=colour)
        elif beside in ("reflectance", "camera"):
            self.added = ReflectanceFront(channels) if beside == "reflectance" else CameraFront(channels)
        elif beside != "none":
            self.added = _Logarithms(channels) if beside == "log" else _Ratios(channels)
        self.out_channels = self.added.out_channels if self.added else len(channels)
        self.reach = 1 if sobel else 0

    def scale(self, pixels: Tensor) -> Tensor:
        """Return `(pixels - offset) * factor` for each band, in floating point."""
        return (pixels.to(self.offset.dtype) - self.offset) * self.factor

    def filter(self, scaled: Tensor) -> Tensor:
        """Return the channels that the trunk takes."""
        return scaled if self.added is None else self.added(scaled)


class _Sobel(nn.Module):
    """`[colours, dx, dy, others]` of `[colours, others]`; zeros outside the image."""

    def __init__(self, channels: Sequence[str], *, colour: bool) -> None:
        super().__init__()
        if set(LUMINANCE) <= set(channels):
            weights = [LUMINANCE.get(name, 0.0) for name in channels]
        elif "grey" in channels:
            weights = [float(name == "grey") for name in channels]
        else:
            raise UsageError(
                f"The Sobel filter needs red, green and blue, or grey, not {', '.join(channels)}."
            )
        self.kept = [i for i, weight in enumerate(weights) if weight and colour and "red" in channels]
        self.others = [i for i, weight in enumerate(weights) if not weight]
        self.out_channels = len(self.kept) + 2 + len(self.others)
        self.luminance: Tensor
        self.kernels: Tensor
        self.register_buffer("luminance", torch.tensor(weights).view(1, -1, 1, 1), persistent=False)
        dx = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        self.register_buffer("kernels", torch.stack([dx, dx.T])[:, None], persistent=False)

    def forward(self, scaled: Tensor) -> Tensor:
        grey = (scaled * self.luminance).sum(1, keepdim=True)
        gradients = F.conv2d(grey, self.kernels.to(grey.dtype), padding=1)
        kept, others = (band_slices(scaled, bands) for bands in (self.kept, self.others))
        return torch.cat([*kept, gradients, *others], dim=1)


class _Logarithms(nn.Module):
    """`[bands, logarithms]` of reflectance: ratios of dark values, which separate water from leaves, become distances.

    Values are clamped to 0..1, and both parts are brought to about -1..1.
    """

    DARK = 0.02
    """Added before the logarithm: differences of values far below this are noise."""

    def __init__(self, channels: Sequence[str]) -> None:
        super().__init__()
        self.out_channels = 2 * len(channels)

    def forward(self, scaled: Tensor) -> Tensor:
        values = scaled.clamp(0.0, 1.0)
        return torch.cat([4.0 * values - 0.5, torch.log(values + self.DARK) + 2.5], dim=1)


class _Ratios(nn.Module):
    """`[bands, normalised differences]`: infrared and red, green and infrared, blue and red, green and red."""

    PAIRS = (("nir", "red"), ("green", "nir"), ("blue", "red"), ("green", "red"))
    DARK = 0.05
    """Added to the sums, so that ratios of dark values do not become noise."""

    def __init__(self, channels: Sequence[str]) -> None:
        super().__init__()
        missing = sorted({name for pair in self.PAIRS for name in pair} - set(channels))
        if missing:
            raise UsageError(f"Ratios of bands need a band named {' and '.join(missing)}.")
        self.first, self.second = ([channels.index(pair[i]) for pair in self.PAIRS] for i in (0, 1))
        self.out_channels = len(channels) + len(self.PAIRS)

    def forward(self, scaled: Tensor) -> Tensor:
        values = scaled.clamp_min(0.0)
        first, second = (torch.cat(band_slices(values, bands), 1) for bands in (self.first, self.second))
        return torch.cat([scaled - 0.4, (first - second) / (first + second + self.DARK)], dim=1)


class SpectralFront(nn.Module):
    """Input channels of the land-cover models, from red, green, blue and infrared, of which the last may be missing.

    Channels: the bands, their logarithms, the normalised differences of infrared and red, green and red, green and
    infrared, blue and red, and whether infrared is there and whether the image is stretched. Which pixels lack infrared
    follows from their values, so that a scene without it needs no other graph, and tiles no knowledge of the scene.
    """

    BANDS = ("red", "green", "blue", "nir")
    DARK: float
    """Added to sums and before logarithms: differences of values far below this are noise."""

    def __init__(self, channels: Sequence[str]) -> None:
        super().__init__()
        if tuple(channels) != self.BANDS:
            raise UsageError(
                f"A land-cover network takes {', '.join(self.BANDS)}, not {', '.join(channels)}."
            )
        self.out_channels = 14

    def forward(self, scaled: Tensor) -> Tensor:
        """Return channels `[N, 14, H, W]` of scaled bands `[N, 4, H, W]`."""
        values, infrared, stretched = self.decode(scaled)
        red, green, blue, nir = torch.split(values, 1, 1)
        there = torch.cat([torch.ones_like(values[:, :3]), infrared], 1)
        bands, logarithms = self.channels(values)
        ratios = [
            self._difference(nir, red) * infrared,
            self._difference(green, red),
            self._difference(green, nir) * infrared,
            self._difference(blue, red),
        ]
        return torch.cat([bands * there, logarithms * there, *ratios, infrared, stretched], 1)

    def decode(self, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return values clamped to 0..1, where infrared is present (1 or 0), and which pixels are stretched."""
        raise NotImplementedError

    def channels(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return bands and logarithms, both brought to about -1..1."""
        raise NotImplementedError

    def _difference(self, first: Tensor, second: Tensor) -> Tensor:
        return (first - second) / (first + second + self.DARK)


class ReflectanceFront(SpectralFront):
    """Input channels from reflectance x 10000, or from stretched values as a rough substitute."""

    DARK = 0.02
    STRETCHED_ABOVE, STRETCHED_FROM = 1.5, 2.0
    """Scaled values: the least mean of the colours of a stretched pixel, and that of the 2nd percentile."""
    TYPICAL = (0.03, 0.22)
    """Typical reflectance of the 2nd percentile of a scene, and the span to the 98th."""

    def decode(self, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As in the base class."""
        infrared = (scaled[:, 3:] > -1.0).to(scaled.dtype)
        stretched = (scaled[:, :3].mean(1, keepdim=True) > self.STRETCHED_ABOVE).to(scaled.dtype)
        low, span = self.TYPICAL
        values = scaled + stretched * (low + span * (scaled - self.STRETCHED_FROM) - scaled)
        return values.clamp(0.0, 1.0), infrared, stretched

    def channels(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """As in the base class."""
        return 4.0 * values - 0.5, torch.log(values + self.DARK) + 2.5


class CameraFront(SpectralFront):
    """Input channels from 8-bit values of a camera, taken as they are."""

    DARK = 0.05

    def decode(self, scaled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As in the base class."""
        infrared = (scaled[:, 3:] > 0.0).to(scaled.dtype)
        return scaled.clamp(0.0, 1.0), infrared, torch.zeros_like(infrared)

    def channels(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """As in the base class."""
        return 2.0 * values - 1.0, torch.log(values + 0.1) + 1.2


def conv_norm_relu(
    before: int, width: int, kernel: int, *, dilation: int = 1, stride: int = 1
) -> nn.Sequential:
    """Return a convolution that keeps the size or divides it by a stride, batch norm with running statistics, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(before, width, kernel, stride=stride, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a skip connection, projected where the shape changes."""

    def __init__(self, before: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.skip = nn.Sequential(
                nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block, of half the size if its stride is 2."""
        hidden = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(self.norm2(self.conv2(hidden)) + self.skip(x), inplace=True)


@contextmanager
def fresh_statistics(network: nn.Module) -> Iterator[None]:
    """Forget the statistics of batch norm, and take the plain mean over all batches that are run inside."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean
    network.train()
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
