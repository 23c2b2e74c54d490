"""Replays certificates of selection problems, record by record."""
