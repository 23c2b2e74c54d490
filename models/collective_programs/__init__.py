"""Describes collective programs: which chunk every device holds, the collectives of a step, their
loads and their cost.
"""
