"""Solves selection problems and writes a proof tree of every answer.

Phases are folders, each of which imports only those above it here (`docs/selection.md` follows a problem through them):

    options         every tuning constant, with its unit and its reason
    model           problems in memory (factored, dense), resource rows, units, clocks
    presolve        a smaller problem with the same optimum, a log that a checker replays
    elimination     bucket elimination: exact where the width allows
    bound           messages (TRW-S), multipliers of the rows (subgradient ascent), cuts, their exact value
    primal          incumbent, descent, repair, local search
    tree            runs, branch and bound, proof trees, searches of smaller problems
    decomposition   repeated structure: symmetric solutions, column generation, coarse rows, interfaces
    engines         other solvers that are asked for solutions
    solve           which of them a problem gets; `relax_resources`, `fallback`, `answer` around it
"""
