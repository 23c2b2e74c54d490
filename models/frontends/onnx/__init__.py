"""ONNX files as graphs."""
