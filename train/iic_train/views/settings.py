"""How two views of the same content are made, as plain values. Nothing here needs PyTorch."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Photometry:
    """How strongly the values of a view are changed; 0 leaves a property alone.

    Attributes:
        brightness: The colour bands are multiplied by 1 +- this.
        contrast: The distance of the colour bands to the mean luminance of the image is multiplied by 1 +- this.
        saturation: The distance of the colour bands to the luminance of each pixel is multiplied by 1 +- this.
        hue: Colours are turned by up to this part of the colour circle.
        all_brightness: All bands together, infrared included, are multiplied by 1 +- this.
        all_contrast: The distance of every band to its mean in the image is multiplied by one factor of 1 +- this.
        all_gamma: All bands are raised to one power between exp(-this) and exp(this).
        band_gain: Each band on its own is multiplied by 1 +- this.
        noise: Standard deviation of the noise that is added to every value.
        blur: Largest standard deviation in pixels of a Gaussian blur.
        vegetation_jitter: Where infrared is above red, their distance is multiplied by 1 +- this, as if plants were
            drier or greener. It needs bands named red and nir and has no effect without them.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    all_brightness: float = 0.0
    all_contrast: float = 0.0
    all_gamma: float = 0.0
    band_gain: float = 0.0
    noise: float = 0.0
    blur: float = 0.0
    vegetation_jitter: float = 0.0


POTSDAM_JITTER = Photometry(0.1, 0.1, 0.1, 0.1)
STRONG_JITTER = Photometry(0.4, 0.4, 0.4, 0.125)
"""The two published strengths: that of Potsdam, and that of all other data sets."""


@dataclass(frozen=True)
class Light:
    """Strength of the augmentation of light on labelled ground; 0 leaves a property alone.

    Attributes:
        plain: Share of the images that stay as they are.
        varied: Whether the strength of the changes is drawn for each image, from nothing to what is given here.
        gain: Standard deviation of the logarithm of one factor for all bands.
        band_gain: Standard deviation of the logarithm of a factor for each band.
        gamma: Standard deviation of the logarithm of a power for all bands.
        offset: Standard deviation of what is added to all bands.
        noise: Largest standard deviation of the noise that is added to every value.
    """

    retired: ClassVar[tuple[str, ...]] = (
        "wide_gain",
        "contrast",
        "band_offset",
        "haze",
        "air",
        "saturation",
        "mixing",
        "vegetation",
        "shadow",
        "blur",
    )
    plain: float = 0.0
    varied: bool = False
    gain: float = 0.0
    band_gain: float = 0.0
    gamma: float = 0.0
    offset: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True)
class DensePairs:
    """How pairs for segmentation are made; the defaults are those published for Potsdam.

    Attributes:
        photometry: Changes of the values of the second view.
        both: Whether the values of the first view are changed too, independently.
        flip: Probability of a horizontal flip.
        flip_vertical: Probability of a vertical flip.
        turn: Probability of a transposition. With both flips at 0.5, all eight flips and turns are equally likely.
        rotation: Largest rotation in degrees.
        shear: Largest shear in degrees.
        zoom: Largest relative change of size.
    """

    photometry: Photometry = POTSDAM_JITTER
    both: bool = False
    flip: float = 0.5
    flip_vertical: float = 0.0
    turn: float = 0.0
    rotation: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0


@dataclass(frozen=True)
class ImagePairs:
    """How pairs for clustering are made.

    Attributes:
        size: Side of the views in pixels.
        crop: Side of the square that the first view and evaluation take from an image.
        crops: Sides, equally likely, of the square that the second view takes.
        centred: Probability that the first view takes the central square instead of a random one.
        rotation: Largest rotation of the second view in degrees.
        shear: Largest slant of the second view in degrees.
        stretch: Largest logarithm of the factors by which the second view is wider and higher, drawn independently.
        rotated: Probability that the second view is rotated, slanted and stretched at all.
        flip: Probability that the second view is flipped horizontally.
        photometry: Changes of the values of the second view.
        strokes: Probability that a short line is drawn across the second view, in white on black.
    """

    size: int
    crop: int
    crops: tuple[int, ...]
    centred: float = 0.0
    rotation: float = 0.0
    shear: float = 0.0
    stretch: float = 0.0
    rotated: float = 0.5
    flip: float = 0.5
    photometry: Photometry = STRONG_JITTER
    strokes: float = 0.0
