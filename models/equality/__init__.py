"""Describes what runs on ranks: one list of steps per rank, for `shardproof equal`."""
