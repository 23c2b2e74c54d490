"""Runs an engine in a process of its own, which is ended with its time, and reads its answer as text.

A crash, a memory blow-up, an answer of another form or one without end is an engine that said nothing usable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final, Literal

from ....models.files.json_text import parse_json
from ...selection.model.clock import Allowance
from .question import Question, Reply

EngineName = Literal["ilp", "smt", "cp-sat"]

GRACE: Final = 2.0
"""Seconds after its limit in which an engine may still hand over what it has."""

MOST_BYTES: Final = 1 << 26
"""Of an answer."""

_CODE: Final = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve()"


def reply_in_time(engine: EngineName, asked: Question, given: Allowance, threads: int) -> Reply:
    """What the engine says within what is `given`, seconds by a clock outside of it.  Nothing in it is checked yet but
    that it is text of the right form.

    >>> from ....models.schedules.pipeline import Pipeline
    >>> from ..shop import shop
    >>> from .question import question
    >>> pipe = Pipeline(((1, 1, 1),) * 2, 2, 0, 2)
    >>> reply_in_time("ilp", question(pipe.problem(), shop(pipe), 9, False), Allowance(60.0), 1).claims
    7
    """
    task = json.dumps(
        {
            "engine": engine,
            "seconds": given.seconds,
            "steps": given.steps,
            "threads": threads,
            "question": asked.to_json(),
        }
    )
    command = [sys.executable, "-c", _CODE.format(path=sys.path, module=__name__)]
    try:
        done = subprocess.run(
            command,
            input=task.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=None if given.seconds is None else given.seconds + GRACE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Reply(None, "time is over")
    if done.returncode != 0:
        return Reply(None, f"nothing: its process ended with {done.returncode}")
    try:
        if len(done.stdout) > MOST_BYTES:
            raise ValueError
        value = parse_json(done.stdout)
        if not isinstance(value, dict):
            raise ValueError
        return Reply(value["starts"], str(value["says"])[:200], value["claims"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Reply(None, "nothing that can be read")


def serve() -> None:
    """The other process: question from standard input, answer to standard output, which solvers cannot write to."""
    task = parse_json(sys.stdin.buffer.read())
    assert isinstance(task, dict)  # from `reply_in_time`
    given = Allowance(task["seconds"], task["steps"])
    asked = Question.of_json(task["question"])
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if task["engine"] == "ilp":
        from .ilp import solve_ilp

        reply = solve_ilp(asked, given, task["threads"])
    elif task["engine"] == "smt":
        from .smt import solve_smt

        reply = solve_smt(asked, given)
    else:
        from .cp_sat import solve_cp_sat

        reply = solve_cp_sat(asked, given, task["threads"])
    out.write(json.dumps({"starts": reply.starts, "says": reply.says, "claims": reply.claims}).encode())
    out.close()
    os._exit(0)  # solvers need not tidy up
