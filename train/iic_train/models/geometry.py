"""Which pixels the output of a network depends on: what makes tiles exact."""

from dataclasses import dataclass, replace

from torch import nn


@dataclass(frozen=True)
class Geometry:
    """The grids of a trunk and how far it sees.

    A block is a square of `stride` pixels that starts at a multiple of `stride`; tiles are made of whole blocks.

    Attributes:
        cell: Number of pixels between two cells of the output.
        stride: Step of the coarsest grid inside the trunk.
        receptive_field: Side in pixels of the largest square that one cell of the output sees.
        before: Number of pixels before its first one that a block depends on, upsampling of cells included.
        after: Number of pixels past its last one that a block depends on, upsampling of cells included.
    """

    cell: int
    stride: int
    receptive_field: int
    before: int
    after: int

    def widened(self, reach: int) -> "Geometry":
        """Return the geometry with a filter before the trunk that sees `reach` pixels in each direction."""
        return replace(
            self,
            receptive_field=self.receptive_field + 2 * reach,
            before=self.before + reach,
            after=self.after + reach,
        )

    @property
    def halo(self) -> int:
        """Context in pixels, a multiple of `stride`, with which the core of a tile equals the whole image."""
        return -(-max(self.before, self.after) // self.stride) * self.stride


def chain_geometry(trunk: nn.Module) -> Geometry:
    """Return the geometry of a trunk whose convolutions and poolings follow one another, skips aside."""
    cell, before, after = 1, 0, 0
    for name, layer in trunk.named_modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d) and ".skip." not in name:
            kernel, step, padding, dilation = (
                value if isinstance(value, int) else int(value[0])
                for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
            )
            before += padding * cell
            after += ((kernel - 1) * dilation - padding) * cell
            cell *= step
    field = before + after + 1
    if cell > 1:
        # Upsampling mixes in the cell before at a cell's first pixel, and the next one at its last.
        before, after = before + cell, after + 1
    return Geometry(cell, cell, field, before, after)
