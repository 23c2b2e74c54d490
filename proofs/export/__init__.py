"""Writes rule libraries as TASO and Unity read them."""
