"""The command line of what is run: `run`, `run-collectives` and their kin."""
