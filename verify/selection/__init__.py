"""This package replays certificates of selection problems, record by record."""
