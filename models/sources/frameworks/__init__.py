"""Reads configurations of other training frameworks as degrees that a strategy can be made of."""
