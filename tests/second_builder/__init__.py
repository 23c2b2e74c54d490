"""The tables of a selection problem once more, from the formulas alone: an oracle for `models/cost/selection`.

Reads the JSON of a graph and of a machine and the table of functions, and nothing else of ours
(`test_second_builder.py` tests that):  no code of `models/layout/layout`, `pricing`, `cost`, `memory` or the checker.
Every device, every box and every cell of it is enumerated; numbers are Python integers and fractions.  Slow on purpose,
and for small plans only.

    description          what is read: operators, accesses, tensors; levels, device classes, profiles
    axis_classes         which axes run over the same thing, and their order
    placements           placement matrices, and the block of an axis on a device
    tilings              the box of an operand on every device, and the digits along which it is partial
    operator_time        roofline, profiles, statistics of a placement
    reduction_time       (L2): what a reduction moves
    redistribution_time  (L1), (L3), (L4): what a resharding moves and takes
    memory_rows          what is held while which operators run
    tables               vertices, edges and rows of the whole problem
"""
