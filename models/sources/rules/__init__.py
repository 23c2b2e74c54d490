"""This package reads public rule formats: TASO and FlexFlow."""
