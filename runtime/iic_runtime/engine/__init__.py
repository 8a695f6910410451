"""Engines that compute labels from pixels: ONNX Runtime and TensorRT."""
