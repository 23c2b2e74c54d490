"""This package translates `torch.export` programs into graphs."""
