"""The selection problem and the claims about it, with every file format that a problem is read
from.
"""
