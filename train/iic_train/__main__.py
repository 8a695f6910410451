"""`python -m iic_train`, for torchrun."""

from iic_train.cli import main

main()
