"""Selection problems in memory: the forms that searches work on, their units, resource rows and
clocks.
"""
