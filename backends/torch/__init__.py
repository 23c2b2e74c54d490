"""Computes operators with PyTorch on the memory of NumPy's arrays, known as the backend `torch`."""
