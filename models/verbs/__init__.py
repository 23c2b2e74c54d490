"""The command line of what is described: `import`, `machine`, and the options that other verbs
share.
"""
