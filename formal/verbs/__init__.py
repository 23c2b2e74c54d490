"""The command line of what is decided: `plan`, `solve`, `audit`, `explain`, `reduce`, `rules`,
`calibrate`.
"""
