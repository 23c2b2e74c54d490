"""Checks plans: entries of the tables from index sets, memory, owners, reshardings, and the
certificate.
"""
