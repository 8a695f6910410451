"""The IIC objective and the loss of one training step."""
