"""Configurations of other training frameworks, read as degrees that a strategy can be made of."""
