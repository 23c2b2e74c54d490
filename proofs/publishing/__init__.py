"""Opens files of every kind and puts a checked file into its place."""
