"""This package checks plans of pipelined training steps."""
