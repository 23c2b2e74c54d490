"""Makes loops of one operator: of recurrences that a frontend found, or that a program repeats turn by
turn."""
