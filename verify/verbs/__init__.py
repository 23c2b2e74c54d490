"""The command line of the checkers: `check`, `rules check`."""
