"""What every e-graph must be before anything is claimed about its programs; says nothing about
equality.

the user's operators   are all there, unchanged and in order, and every operator alone is well formed
order                  every e-node stands behind all e-nodes of the classes that it reads, and none that reads a
                       parameter stands behind the first of its next value: all choices of modes are programs
new classes            are read by some operator.  Then they can be absent, as no operator of the user reads one, and
                       the user's program is one of those that a claim is about
"""

from __future__ import annotations

from ...models.joint.egraph import EGraph
from ...models.program.graph import Graph, GraphError, Role, Tensor


def wrong_egraph(egraph: EGraph) -> str:
    """Why this is no e-graph; empty if it is one."""
    base, union = egraph.base, egraph.union
    if len({op.name for op in egraph.operators}) != len(egraph.operators):
        return "two operators have the same name"
    if len({t.name for t in union.tensors}) != len(union.tensors):
        return "two classes have the same name"
    if any(t.role is not Role.VALUE for t in egraph.tensors):
        return "a new class is an input or a parameter"
    own = {op.name for op in base.operators}
    if tuple(op for op in egraph.operators if op.name in own) != base.operators:
        return "the user's operators are not all there, unchanged and in order"
    last = {op.output.tensor: i for i, op in enumerate(egraph.operators)}
    known = {t.name for t in union.tensors}
    for i, op in enumerate(egraph.operators):
        if missing := [a.tensor for a in (*op.inputs, op.output) if a.tensor not in known]:
            return f"operator {op.name!r} names {missing[0]!r}, which is no class"
        for a in op.inputs:
            if a.tensor in last and last[a.tensor] >= i:
                return f"operator {op.name!r} reads {a.tensor!r} before all its operators have run"
            if union.tensor(a.tensor).role is Role.VALUE and a.tensor not in last:
                return f"operator {op.name!r} reads {a.tensor!r}, which nobody computes"
        if union.tensor(op.output.tensor).role is not Role.VALUE:
            return f"operator {op.name!r} writes {op.output.tensor!r}, which is given"
    first = {op.output.tensor: i for i, op in reversed(list(enumerate(egraph.operators)))}
    for parameter, value in base.state:
        late = [op.name for op in egraph.operators[first[value] + 1 :] if any(a.tensor == parameter for a in op.inputs)]
        if late:
            return f"operator {late[0]!r} may read {parameter!r} after {value!r} has taken its place"
    read = {a.tensor for op in egraph.operators for a in op.inputs}
    if idle := [t.name for t in egraph.tensors if t.name not in read]:
        return f"class {idle[0]!r} is new, and nobody reads it"
    for op in egraph.operators:  # every e-node is well formed where the classes it reads are given
        try:
            given = [union.tensor(t) for t in dict.fromkeys(a.tensor for a in op.inputs)]
            Graph(
                "node",
                (
                    *(Tensor(t.name, t.shape, t.dtype, Role.INPUT, host=t.host) for t in given),
                    union.tensor(op.output.tensor),
                ),
                (op,),
                (),
            ).check()
        except GraphError as error:
            return str(error)
    return ""
