"""This package checks plans: entries of the tables from index sets, memory, owners, redistributions, and the
certificate.
"""
