"""The container of every `.spz` file: canonical JSON, arrays, hashes."""
