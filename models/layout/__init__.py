"""Where the points of tensors and operators lie: placement matrices, boxes of index sets,
layouts, splits that are not even.
"""
