"""A layer of attention in plain NumPy: planned, checked, run on eight virtual ranks against one process.

python examples/numpy_attention.py
"""

import numpy as np

import shardproof


def attention(x, wq, wk, wv, wo):
    q = np.einsum("bsm,mhd->bhsd", x, wq)
    k = np.einsum("bsm,mhd->bhsd", x, wk)
    v = np.einsum("bsm,mhd->bhsd", x, wv)
    scores = np.exp(np.einsum("bhsd,bhtd->bhst", q, k) / np.sqrt(8.0))
    p = scores / scores.sum(-1, keepdims=True)
    return np.einsum("bhsd,hdm->bsm", np.einsum("bhst,bhtd->bhsd", p, v), wo)


head = shardproof.parameter(32, 4, 8)
inputs = (np.zeros((8, 16, 32)), head, head, head, shardproof.parameter(4, 8, 32))
plan = shardproof.plan(attention, "localhost:8", inputs=inputs)
print(plan)
for operator, placement in plan.placements.items():
    print(f"  {operator:<12} axes {', '.join(placement.axes)}: {placement.matrix}")
ran = plan.run()
print(f"largest difference from one process {ran.difference:.1e}; {ran.movements} movements, bytes as priced")
assert ran.equal and not ran.mismatched
