"""This package solves selection problems and writes a proof tree of every answer."""
