"""Asks whether a program on ranks is one on one device: which parts ranks have, and numbers that tell them apart."""
