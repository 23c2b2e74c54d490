"""Replays collective programs and counts placements."""
