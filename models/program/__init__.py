"""Describes programs: graphs of tensor operators with exact dimensions, their index expressions and
their files.
"""
