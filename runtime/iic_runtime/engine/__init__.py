"""Engines that compute labels from pixels: ONNX Runtime, OpenVINO and TensorRT."""
