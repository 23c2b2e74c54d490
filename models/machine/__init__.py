"""Describes machines: devices, levels of links, and the measured constants of both, as TOML files."""
