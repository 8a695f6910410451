"""What the paper is compared with, next to the product: the commands are in `iic_train.cli.training`."""
