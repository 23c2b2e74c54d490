"""Reads graphs of operators and collectives of one rank as scheduling problems."""
