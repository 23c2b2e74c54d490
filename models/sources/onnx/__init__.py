"""Translates ONNX files into graphs."""
