"""Cuts training steps into stages of a pipeline: what can be cut, what a stage costs, what it sends."""
