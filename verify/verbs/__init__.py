"""This package is the command line of the checkers: `check`, `rules check`."""
