"""This package translates ONNX files into graphs."""
