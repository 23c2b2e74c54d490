"""Runs an engine in a process of its own, which is ended with its time.

Solvers do not always keep their time limits: HiGHS 1.15.1 was seen to presolve six vertices of three choices without
end, and text is parsed without looking at a clock.  A crash, a memory blow-up or an interrupt in there is an engine
that said nothing.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, Literal

from .....models.problem.selection_problem import SelectionProblem
from ...model.clock import Allowance
from . import Reply

GRACE: Final = 2.0
"""Seconds after its limit in which an engine may still hand over what it has: modules are loaded and the problem is
unpacked before its time counts.
"""

_CODE: Final = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve()"


def reply_in_time(
    engine: Literal["ilp", "smt", "cp-sat"],
    problem: SelectionProblem,
    given: Allowance,
    threads: int,
    events: Sequence[int],
) -> Reply:
    """What the engine says within what is `given`, seconds by a clock outside of it.

    >>> import numpy as np
    >>> from shardproof.models.problem.selection_problem import SelectionProblem, Vertex
    >>> reply_in_time("smt", SelectionProblem("one", (Vertex("a", np.array([3, 1, 2])),), (), ()), Allowance(60.0), 1,
    ...     ()).solution
    (1,)
    """
    task = pickle.dumps((engine, problem, given, threads, tuple(events)))
    command = [sys.executable, "-c", _CODE.format(path=sys.path, module=__name__)]
    try:
        done = subprocess.run(
            command,
            input=task,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=None if given.seconds is None else given.seconds + GRACE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Reply(None, "time is over")
    if done.returncode != 0:
        return Reply(None, f"nothing: its process ended with {done.returncode}")
    solution, says, final = pickle.loads(done.stdout)  # from `serve` only
    return Reply(solution, says, final)


def serve() -> None:
    """The other process: task from standard input, answer to standard output, which solvers cannot write to."""
    engine, problem, given, threads, events = pickle.load(sys.stdin.buffer)  # from `reply_in_time` only
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if engine == "smt":
        from .smt import solve_smt

        reply = solve_smt(problem, given, events)
    elif engine == "cp-sat":
        from .cp_sat import solve_cp_sat

        reply = solve_cp_sat(problem, given, events)
    else:
        from .ilp import solve_ilp

        reply = solve_ilp(problem, given, threads, events)
    out.write(pickle.dumps((reply.solution, reply.says, reply.final)))
    out.close()
    os._exit(0)  # solvers need not tidy up
