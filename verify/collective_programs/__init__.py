"""This package replays collective programs and counts placements."""
