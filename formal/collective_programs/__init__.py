"""This package synthesises collective programs over the state graph."""
