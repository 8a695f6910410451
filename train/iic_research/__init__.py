"""Research next to the product: the baselines of the paper, and scripts that make what the packages contain."""
