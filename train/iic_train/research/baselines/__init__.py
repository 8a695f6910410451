"""What the paper compares with, on the same data, trunk and protocol."""
