"""Named compositions of operators, recognised after import."""
