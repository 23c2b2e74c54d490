"""This package holds the container of every `.spz` file: canonical JSON, arrays, hashes."""
