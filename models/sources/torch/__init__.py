"""`torch.export` programs as graphs."""
