"""The bank: features of a pixel's surroundings at several scales, defined once for everything that computes them.

A scaled value x (about 0..1) becomes the square root of x + OFFSET, standardised over the scene and cut off at LIMIT.
The bank holds these values, a vegetation index where there are red and infrared, and for each of SIDES

- their means in squares of that side, as far as the squares lie on the scene;
- the texture of brightness and of the index: the eighth root of V + SMOOTH ** 2, where V at level i is the mean over a
  square of V at level i - 1 and the squared difference between the means of the two levels at each of its pixels. At
  the last level that difference is left out. Nothing is subtracted after squaring, so nothing cancels.

Roots stand where logarithms are usual, because engines round them correctly: the same pixels have the same features
in any tile, with any number of threads.

The network of `iic-train rasters` and the graphs that are written without PyTorch compute the same.
"""

SIDES = (3, 9, 27, 81)
"""Sides of the squares in pixels: level i is a mean of three of level i - 1 in each direction."""
REACH = 49
"""Pixels in each direction that influence the bank: those of the texture of the widest squares."""
OFFSET = 1.0
"""Added before the square root, which brings bright and dark materials to similar distances; values below its negative
count as that."""
LIMIT = 4.0
"""Standard deviations at which values are cut off."""
ROOTS = 3
"""Number of square roots that make a variance a texture."""
TEXTURE = 4.0
"""Factor that brings texture to about the spread of the other features."""
SMOOTH = 0.05
"""Deviation below which texture is noise, in standard deviations of the scene."""
INDEX_OFFSET = 0.1
"""Added to the sum in the vegetation index, which has no meaning where it is dark."""
LEAST_SPREAD = 1e-5
"""A band whose square roots vary less over the scene is taken as constant."""
LEAST_DEVIATION = 1e-3
"""A feature that varies less over the scene is taken as constant: dividing by it would amplify rounding."""
