"""Turns PyTorch programs into graphs in digits.

    FILE.py:NAME or FILE.pt2 -> core ATen (`program`) -> nodes as plain data, constants folded (`fold`)
    -> operators over flat dimensions, reshapes as views (`torch_*` handlers) -> digits (`digits`) -> named patterns
    (`patterns`)

Every operator kind is in one table, `HANDLERS`; what is not there, or is there in a variant that we cannot represent,
is refused with all its places listed at once.  Weights are parameters under their names in the `state_dict` (tied
weights once).  Dropout and stochastic depth are the identity (`noise`); running statistics that a training step would
update are not outputs.  What the program computes from nothing is folded; where an operator must read it, it is an
input `constant.*` whose contents are in `Imported.stated`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ...program.graph import Graph, GraphError
from ...program.index import Axis, Combine, access
from ...program.operators import Operator
from ...program.specified import with_specified
from ..building.attention import with_fused_gradients
from ..building.builder import Builder
from ..building.digits import split_digits
from ..building.flat import Unsupported, check_extents, used
from ..building.layer_names import layer_names, with_layer_names
from ..building.original import Original, not_run
from ..building.slots import Places, with_slots
from ..building.stated import with_constants
from ..building.unsorted import without_sorting
from ..loops.reroll import reroll_loops
from ..patterns.recognise import recognise
from . import attention as torch_attention
from . import complex_numbers
from . import dense as torch_dense
from . import elements as torch_elements
from . import experts as torch_experts
from . import layout as torch_layout
from . import noise as torch_noise
from . import normalise as torch_normalise
from . import norms as torch_norms
from . import ordered as torch_ordered
from . import padded as torch_padded
from . import picked as torch_picked
from . import pointwise as torch_pointwise
from . import recurrent as torch_recurrent
from . import resample as torch_resample
from . import rounding as torch_rounding
from . import sampled as torch_sampled
from . import scattered as torch_scattered
from . import stopped as torch_stopped
from . import strided as torch_strided
from . import transposed as torch_transposed
from . import window as torch_window
from .constants import emit
from .context import DTYPES, Context, Handler, Imported, Node, Ref, TorchError, flat_error
from .fold import Folder
from .layout import without_elements
from .original import original_of
from .outputs import LOSS, loss_among, output_names, rename_tensor
from .program import Program, load_program, made_by, saved_module
from .reader import ALIASES, Reader
from .refused import Refused
from .specified import handler_of
from .stopped import mark_gradient
from .train_step import whole_step
from .unreadable import unreadable

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node as FxNode

    from ..load import Attention

HANDLERS: Final[Mapping[str, Handler]] = MappingProxyType(
    {
        **torch_pointwise.HANDLERS,
        **torch_normalise.HANDLERS,
        **torch_dense.HANDLERS,
        **torch_window.HANDLERS,
        **torch_layout.HANDLERS,
        **torch_picked.HANDLERS,
        **torch_ordered.HANDLERS,
        **torch_scattered.HANDLERS,
        **torch_experts.HANDLERS,
        **torch_noise.HANDLERS,
        **torch_elements.HANDLERS,
        **torch_padded.HANDLERS,
        **torch_sampled.HANDLERS,
        **torch_transposed.HANDLERS,
        **torch_norms.HANDLERS,
        **torch_recurrent.HANDLERS,
        **torch_resample.HANDLERS,
        **torch_rounding.HANDLERS,
        **torch_stopped.HANDLERS,
        **torch_strided.HANDLERS,
        **torch_attention.HANDLERS,
    }
)
"""ATen operator, without overload -> what converts it."""


def _untrained(exported: ExportedProgram) -> frozenset[str]:
    """Stored names of what PyTorch hands no gradient to: parameters without `requires_grad`, buffers."""
    from torch.export.graph_signature import InputKind

    out = set()
    for spec in exported.graph_signature.input_specs:
        held = exported.state_dict.get(spec.target) if spec.target is not None else None
        fixed = spec.kind is InputKind.PARAMETER and held is not None and not held.requires_grad
        if spec.target is not None and (fixed or spec.kind is InputKind.BUFFER):
            out.add(spec.target)
    return frozenset(out)


def _frozen(graph: Graph, candidates: frozenset[str]) -> Graph:
    """The graph with the weights frozen that PyTorch does not train: those without `requires_grad`, and buffers that
    an operator could hand a gradient to (running statistics get none).
    """
    reached = {op.inputs[j].tensor for op in graph.operators for j in _smooth(op) if op.inputs[j].tensor in candidates}
    if not reached:
        return graph
    return replace(graph, tensors=tuple(replace(t, frozen=t.name in reached) for t in graph.tensors))


def _smooth(op: Operator) -> range:
    """Inputs of an operator that are no statistics."""
    return range(3 if op.function == "batch_norm" else len(op.inputs))


def supported_operators() -> list[str]:
    """ATen operators that can be imported, sorted; operators on constants of the program are computed, whatever they
    are.

    >>> "aten.addmm" in supported_operators(), "aten.nonzero" in supported_operators()
    (True, False)
    """
    return sorted(f"aten.{k}" for k in HANDLERS)


def load_torch(
    spec: str,
    batch: int | None = None,
    tell: Callable[[str], None] | None = None,
    attention: Attention | None = None,
    expert_places: int | None = None,
    original: Callable[[Original], None] | None = None,
    trained: bool = False,
) -> Graph:
    """The graph of FILE.py:NAME or FILE.pt2, in digits, small constants by value; `batch` is handed to a factory that
    takes it.  `tell` hears what was done to the model.  `attention`: see `load.Attention`, and `trained`
    (`with_gradients`); `expert_places`: percent of the even share of places that experts get in every sentence, 0: one
    per token; `original` takes the module as PyTorch runs it.

    Raises `TorchError` (cannot be built, exported or represented) and `UnsupportedOperators`.
    """
    places = None if expert_places is None else Places(expert_places)
    program = load_program(spec, batch, attention != "matrices")
    found = convert(program, places)
    if tell is not None:
        for note in found.notes:
            tell(note)
    if original is not None:
        original(_original(spec, batch, program, found, places))
    graph = with_constants(with_gradients(found, attention, trained or program.step is not None), found.stated)
    return graph if program.step is None else whole_step(graph, program.step)


def with_gradients(found: Imported, attention: Attention | None, trained: bool) -> Graph:
    """The graph with attention's gradients as they are asked for: fused everywhere, or, where nothing is said and the
    program is trained, wherever it calls PyTorch's kernel (`scaled_dot_product_attention`); attention that it writes
    as products and softmax has no such kernel.
    """
    if attention == "fused":
        return with_fused_gradients(found.graph)
    if attention is not None or not trained:
        return found.graph
    return with_fused_gradients(found.graph, but={op for pattern, op in found.patterns if pattern == "attention"})


def _original(spec: str, batch: int | None, program: Program, found: Imported, places: Places | None) -> Original:
    if program.step is not None:
        return not_run("PyTorch", "it is a training step of its own, whose optimizer is imported and not run")
    if places is not None:
        return not_run("PyTorch", "its experts have places, which the program's have not")
    make = saved_module if spec.endswith(".pt2") else made_by
    return original_of(program, found.results, lambda: make(spec, batch), convert)


def import_torch(spec: str, batch: int | None = None, attention: bool = True) -> Imported:
    """Like `load_torch`, with the way back to the program."""
    return convert(load_program(spec, batch, attention))


def convert(program: Program, places: Places | None = None) -> Imported:
    """The graph of an exported program; `places`: the capacity that experts are given (`building.slots`)."""
    exported = program.exported
    reader = Reader(exported)
    context, folder = _context(program, reader)
    _convert(context, reader, folder)
    wanted, scalars, left, places_of = _outputs(context, reader, program.own)
    loss = loss_among(scalars)
    try:
        flat = Graph(
            program.name, tuple(context.g.tensors.values()), tuple(context.g.operators), tuple(dict.fromkeys(wanted))
        )
        if loss is not None and len(wanted) > 1:
            flat = rename_tensor(flat, loss, LOSS)
            context.where.update({LOSS: context.where[loss]} if loss in context.where else {})
        flat, uses = used(flat), tuple(context.specified)
        names = layer_names(flat, _outside_modules(context) - {p.tensor for use in uses for p in use.places})
        flat = with_layer_names(flat, names)
        context.where = {names.get(k, k): v for k, v in context.where.items()}
        flat = without_sorting(used(replace(flat, specified=uses)).check())
        digits = split_digits(flat if places is None else with_slots(flat, places))
        found = recognise(reroll_loops(digits.graph), context.contents, program.attention)
        graph = with_specified(found.graph, digits.graph, found.renamed)
        graph = _frozen(check_extents(graph), _untrained(exported))
    except GraphError as e:
        raise TorchError(program.name, str(e)) from None
    kept, held = {op.name for op in graph.operators}, {t.name for t in graph.tensors}
    return Imported(
        graph,
        {found.renamed.get(k, k): v for k, v in context.where.items() if found.renamed.get(k, k) in kept},
        {k: v for k, v in context.stated.items() if k in held},
        digits,
        found.applied,
        (*program.notes, *_drawn(context), *left),
        places_of,
    )


def _outside_modules(c: Context) -> frozenset[str]:
    """Operators that the outermost module computes by itself, so that their names have no path."""
    return frozenset(
        name for name, at in c.where.items() if at in c.places and not c.places[at].path + name.partition(".")[1]
    )


def _drawn(c: Context) -> list[str]:
    """That random numbers are inputs, in words."""
    return [f"random numbers are inputs, drawn by who runs it: {', '.join(c.drawn)}"] if c.drawn else []


def _outputs(
    c: Context, reader: Reader, own: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]], list[str], tuple[int, ...]]:
    """Tensors that the program returns; of its floating-point scalars (name, tensor); what is left out, in words; the
    positions of the tensors, each once.
    """
    listed = reader.exported.graph_signature.user_outputs
    names = output_names(reader.exported)
    wanted: list[str] = []
    scalars: list[tuple[str, str]] = []
    lost: list[str] = []
    positions: dict[str, int] = {}
    for k, o in enumerate(listed):
        if not isinstance(o, str):
            continue
        value = reader.result(o)
        if value not in c.values and value in c.constants:
            lost.append(value.node)
            continue
        tensor = c.tensor(value)
        if own and c.dtypes[value].startswith(("float", "bfloat")):
            tensor = mark_gradient(c, tensor, own)
        if c.shapes[value] == () and c.dtypes[value].startswith(("float", "bfloat")):
            if c.g.tensors[tensor].shape == (1,):  # inside a program a scalar is a vector of one
                axis = [Axis("n", 1, Combine.SUM)]
                name = c.unique(f"{tensor}.scalar")
                c.where[name] = value.node
                tensor = c.g.operator(name, "sum", axis, [access(tensor, "n")], [], {}, c.dtypes[value])
            if tensor not in wanted:
                scalars.append((names[k] if len(names) == len(listed) else "", tensor))
        wanted.append(tensor)
        positions.setdefault(tensor, k)
    if lost and not wanted:
        raise TorchError(f"output {lost[0]!r}", "is a constant of the program; return what depends on an input")
    if not wanted:
        raise TorchError(c.g.name, "returns no tensor")
    left = [f"outputs that are constants of the program are left out: {', '.join(lost)}"] if lost else []
    if own:
        left.append(f"its gradients are not the derivative of its forward pass, so it is not trained: {', '.join(own)}")
    return wanted, scalars, left, tuple(positions.values())


def _context(program: Program, reader: Reader) -> tuple[Context, Folder]:
    """Weights, buffers and inputs; what folds constants."""
    exported = program.exported
    signature = exported.graph_signature
    placeholders = [n for n in reader.nodes if n.op == "placeholder"]
    if written := [*getattr(signature, "parameters_to_mutate", {}).values()]:
        raise TorchError(
            f"parameter {written[0]!r}",
            "is written in place by the forward pass, which no step of the graph does; return the new value, or write "
            "it in the training loop",
        )
    weights, constants, inputs = _inputs(program, reader, placeholders)
    reserved = frozenset([*(w[0] for w in weights.values()), *(n.name for n in inputs)])
    c = Context(Builder(program.name), reserved, weights, reader.read, lambda c, value: emit(c, value, HANDLERS))
    folder = Folder(c, reader.ref)
    for node in placeholders:
        value = node.meta.get("val")
        ref = Ref(node.name)
        if hasattr(value, "shape") and ref in reader.read:
            if reason := unreadable(value):
                raise TorchError(f"value {node.name!r}", f"is {reason}")
            c.shapes[ref], c.dtypes[ref] = reader.shape(node.name, value), str(value.dtype).removeprefix("torch.")
    for node in inputs:
        ref = Ref(node.name)
        if ref in reader.read:
            shape, dtype = c.shapes[ref], c.dtypes[ref]
            _known_dtype(f"input {node.name!r}", dtype)
            if 0 in shape:
                raise TorchError(
                    f"input {node.name!r}", f"has shape {shape}; every extent, also the batch, must be at least 1"
                )
            c.values[ref] = c.g.input(node.name, shape or (1,), dtype, None if shape else ())
    for node, known in constants:
        folder.keep(Ref(node.name), known)
    return c, folder


def _inputs(
    program: Program, reader: Reader, placeholders: Sequence[FxNode]
) -> tuple[dict[str, tuple[str, tuple[int, ...], str]], list[tuple[FxNode, object]], list[FxNode]]:
    """(weights: name, shape and type by node; constants that are known; inputs of the user)."""
    from torch.export.graph_signature import InputKind

    exported = program.exported
    signature = exported.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    stored: dict[int, str] = {}
    weights: dict[str, tuple[str, tuple[int, ...], str]] = {}
    constants: list[tuple[FxNode, object]] = []
    inputs: list[FxNode] = []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind is InputKind.USER_INPUT:
            if hasattr(value, "shape"):
                inputs.append(node)
            continue
        if spec.kind is InputKind.TOKEN:  # orders side effects; what has them is refused where it is called
            continue
        if spec.target is None or not hasattr(value, "shape"):
            raise TorchError(f"input {node.name!r}", f"is a {spec.kind.name.lower()}, which cannot be represented")
        dtype = str(value.dtype).removeprefix("torch.")
        known = program.contents.get(spec.target)
        if spec.kind is InputKind.CONSTANT_TENSOR and known is None:
            held = exported.constants.get(spec.target)
            known = held if held is not None and not held.is_meta and type(held).__name__ != "FakeTensor" else None
        loaded = spec.kind is InputKind.PARAMETER or (
            spec.kind is InputKind.BUFFER and spec.persistent and value.dtype.is_floating_point
        )
        if known is not None and not loaded and spec.target not in mutated:
            if Ref(node.name) in reader.read:
                constants.append((node, known))
            continue
        tensor = exported.state_dict.get(spec.target, exported.constants.get(spec.target))
        name = stored.setdefault(id(tensor), spec.target) if tensor is not None else spec.target
        weights[node.name] = (name, reader.shape(node.name, value), dtype)
    return weights, constants, inputs


def _known_dtype(place: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise TorchError(
            place, f"has element type {dtype}, which cannot be represented; known: {', '.join(sorted(DTYPES))}"
        )


def _complex(c: Context, node: Node) -> None:
    complex_numbers.convert(c, node, HANDLERS)


def _convert(c: Context, reader: Reader, folder: Folder) -> None:
    """Run every node's handler."""
    refused = Refused(c, HANDLERS)
    for fx in reader.live:
        if getattr(fx.target, "__name__", "") == "getitem":
            continue
        behind = refused.touches(
            n.args[0].name if getattr(n.target, "__name__", "") == "getitem" else n.name for n in fx.all_input_nodes
        )
        node = reader.plain(fx)
        for k, (shape, dtype) in enumerate(zip(node.shapes, node.dtypes, strict=True)):
            c.shapes[Ref(node.name, k)], c.dtypes[Ref(node.name, k)] = shape, dtype
        if behind:
            refused.follow(node)
        if folder.fold(fx):
            c.makers.update((Ref(node.name, k), node) for k in range(len(node.shapes)))
            continue
        c.places[node.name] = node
        kind = ALIASES.get(node.kind, node.kind).removeprefix("aten.").partition(".")[0]
        place = f"{node.path}.{node.name}" if node.path else node.name
        handler = HANDLERS.get(kind) if ALIASES.get(node.kind, node.kind).startswith("aten.") else None
        handler = handler or handler_of(node.kind)
        if node.kind.startswith("aten.") and complex_numbers.is_complex(c, node):
            handler = _complex
        if handler is None:
            refused.add(node, place)
            continue
        try:
            for k, dtype in enumerate(node.dtypes):
                if Ref(node.name, k) in c.read and handler is not _complex:
                    _known_dtype(f"node {place!r}", dtype)
            if not without_elements(c, node):
                handler(c, node)
        except Unsupported as e:
            refused.add(node, place, e.reason)
        except (GraphError, TorchError) as e:
            if not behind:
                raise (flat_error(node, e) if isinstance(e, GraphError) else e) from None
            refused.stand_in(node)
    refused.done()
