"""Writes a plan as a Python file of PartitionSpecs for JAX.

A PartitionSpec lists for every dimension of an array the mesh axes that cut it, major first, in any order; blocks are
equal.  Partial sums have no name in it, so results are said as they rest, after they were summed:

    mesh       axes of the machine, as `jax.make_mesh` takes them
    PARAMETERS name -> spec of the array as it is stored (`NamedSharding(mesh, spec)`)
    RESULTS    operator -> spec of its result where it rests; `constrain(name, x)` in the function is the point where
               the plan puts it

    SHARDY     the same, and what PartitionSpecs do not say, as Shardy's text over the machine's levels (`SHARDY_MESH`):
               sub-axes instead of a factored mesh, blocks that do not divide, sums that are not made yet

What PartitionSpecs cannot say (a dimension that its blocks do not divide, a digit inside a dimension) is listed in the
file, and so are precision, recomputation, micro-batches, optimizer, loss and attention of the plan: the jitted function
does these (`LEFT_OUT`).
"""

from __future__ import annotations

from contextlib import suppress

from ...models.communication.shardings import NotASharding, plan_shardings
from ...models.layout.mesh import Mesh
from ...models.layout.sharding import Sharding, ShardingError, unfold
from ...models.layout.targets.axes import levels_as_axes
from ...models.layout.targets.jax import specification
from ...models.layout.targets.shardy import mesh_text, sharding_text
from ...models.program.graph import Graph, Role
from ...proofs.plan.bundle import Plan
from .exported import Exported, Parts, in_docstring, left_text, module_text, refuse_parts
from .layers import NOTATION, layers_text
from .layers import RUNTIME as LAYERS
from .read_recipe import recipe

_FUNCTIONS = '''

def make_mesh(devices=None):
    """The plan's mesh; device r of the plan is the r-th of `devices` (default: all of JAX's)."""
    devices = np.array(jax.devices() if devices is None else devices)
    return Mesh(devices.reshape([size for _, size in MESH]), [name for name, _ in MESH])


def spec(splits):
    """A PartitionSpec from lists of mesh axes, one per dimension."""
    return PartitionSpec(*(tuple(names) if names else None for names in splits))


def place(parameters, mesh):
    """The parameters (name -> array), laid out as the plan stores them; others are copied to all devices."""
    return {
        name: jax.device_put(x, NamedSharding(mesh, spec(PARAMETERS.get(name, ()))))
        for name, x in parameters.items()
    }


def constrain(name, x, mesh):
    """`x`, the result of operator `name`, where the plan keeps it: call it inside the jitted function."""
    splits = RESULTS.get(name)
    return x if splits is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec(splits)))
'''


def export_jax(plan: Plan, identity: str, layouts_only: bool = False, beside: Parts = ()) -> Exported:
    """The file for a plan: layouts, whether they alone are asked for or not; what else a training step of the plan does
    is left to the jitted function, and named.  `beside`: what the plan says that no such file does.  Raises `MeshError`
    where no mesh holds the plan.
    """
    graph = plan.graph
    refuse_parts("jax", beside, layouts_only)
    left = (*(recipe(graph).words() if graph.state else ()), *beside)
    found = plan_shardings(graph, plan.machine.hierarchy, [v.name for v in plan.machine.levels], plan.choices)
    refused = list(found.refused)
    parameters: dict[str, list[list[str]]] = {}
    results: dict[str, list[list[str]]] = {}
    levels = levels_as_axes(found.mesh, [v.name for v in plan.machine.levels])
    texts: dict[str, str] = {}
    for name, kept in found.rests.items():
        with suppress(ShardingError):
            texts[name] = sharding_text(_flat(graph, name, kept, found.mesh)[0], levels)
        try:
            splits = partition_spec(graph, name, kept, found.mesh)
        except ShardingError as error:
            refused.append(NotASharding(f"tensor {name!r}", name, str(error)))
            continue
        (results if graph.tensor(name).role is Role.VALUE else parameters)[name] = splits
    mesh = tuple((d.name, d.size) for d in found.mesh.dimensions)
    head = (
        f'"""PartitionSpecs of plan {identity[:16]} ({in_docstring(graph.name)} on '
        f"{in_docstring(plan.machine.name)}) for JAX, "
        "written by shardproof.\n\nArrays of parameters have the shapes of the model; results those of the plan's "
        "operators.  It needs jax and numpy.\n"
        + NOTATION
        + "\n"
        + left_text("The function that is jitted", left)
        + '"""\n\nfrom __future__ import annotations\n\nimport jax\nimport numpy as np\n'
        "from jax.sharding import Mesh, NamedSharding, PartitionSpec\n\n" + module_text(LAYERS) + "\n\n\n"
    )
    body = "".join(
        f"{word} = {layers_text(value)}\n\n"
        for word, value in (
            ("IDENTITY", identity),
            ("MESH", [list(pair) for pair in mesh]),
            ("PARAMETERS", parameters),
            ("RESULTS", results),
            ("SHARDY_MESH", mesh_text(levels)),
            ("SHARDY", texts),
            ("NOT_EXPRESSED", [[r.place, r.tensor, r.reason] for r in refused]),
            *([("LEFT_OUT", [list(part) for part in left])] if left else []),
        )
    )
    text = head + body.rstrip() + "\n" + _FUNCTIONS
    return Exported(text, mesh, len(parameters) + len(results), tuple(refused), (), left)


def partition_spec(graph: Graph, tensor: str, kept: Sharding, mesh: Mesh) -> list[list[str]]:
    """Mesh axes per dimension of the tensor as the user knows it.  Raises `ShardingError` for what JAX does not say."""
    flat, shape = _flat(graph, tensor, kept, mesh)
    return specification(flat, shape, mesh)


def _flat(graph: Graph, tensor: str, kept: Sharding, mesh: Mesh) -> tuple[Sharding, tuple[int, ...]]:
    """A sharding over the shape that the user knows.  Raises `ShardingError`."""
    t = graph.tensor(tensor)
    shape = t.shape if t.role is Role.VALUE else t.source_shape or t.shape
    return unfold(kept, t.shape, shape, mesh), shape
