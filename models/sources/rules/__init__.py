"""Public rule formats: TASO and FlexFlow."""
