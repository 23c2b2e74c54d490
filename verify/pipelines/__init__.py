"""Checks plans of pipelined training steps."""
