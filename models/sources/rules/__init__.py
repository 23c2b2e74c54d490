"""Reads public rule formats: TASO and FlexFlow."""
