"""Frontends: programs written elsewhere become graphs in digits.  `onnx` imports ONNX files,
`digits` removes
reshapes.
"""
