"""This package writes rule libraries as TASO and Unity read them."""
