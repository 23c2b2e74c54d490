"""The scheme of a plan in words: settings of other frameworks, laid out, are called by their names again."""

from __future__ import annotations

import pytest

from shardproof.formal.explain.explain import explain, render_explanation
from shardproof.formal.explain.parallelism import parallelism_of, state_words
from shardproof.formal.explain.stored_state import StoredState
from shardproof.formal.plans.frameworks import strategy_of_flags
from shardproof.formal.plans.strategy import resolve
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.layout.targets.degrees import Flags
from shardproof.models.machine.machine import load_machine
from shardproof.models.program.graph import Graph
from shardproof.models.sources.patterns.recognise import recognise
from shardproof.models.sources.zoo import build as zoo


def laid_out(graph: Graph, flags: Flags) -> tuple[Planning, list[int]]:
    """Choices that agree with the settings; what they leave open is replicated."""
    planning = build(graph, load_machine("cloud-a100:2x2"), space("complete"))
    allowed = resolve(strategy_of_flags(flags, graph, planning.machine), planning).allowed
    whole = [d.placements.prod(axis=-1)[:, -1].argmax() for d in planning.decisions]
    return planning, [int(allowed[v][0]) if v in allowed else int(whole[v]) for v in range(len(whole))]


LLAMA = {"layers": 1, "width": 16, "heads": 4, "kv_heads": 2, "hidden": 16, "vocabulary": 16, "batch": 4, "sequence": 8}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (Flags("Megatron"), ["data", "data"]),
        (Flags("Megatron", tp=2), ["data", "tensor"]),
        (Flags("Megatron", tp=4), ["tensor", "tensor"]),
        (Flags("Megatron", cp=2), ["data", "sequence"]),
        (Flags("Megatron", tp=2, cp=2), ["sequence", "tensor"]),
    ],
)
def test_settings_are_called_by_their_names(flags: Flags, said: list[str]) -> None:
    graph = recognise(zoo("llama", **LLAMA), attention=True).graph
    found = parallelism_of(*laid_out(graph, flags))
    assert [max(level.shares, key=lambda s: s[1])[0] for level in found] == said
    assert all(sum(s for _, s in level.shares) == 1 for level in found)


def test_sequences_split_between_tensor_parallel_products() -> None:
    graph = recognise(zoo("llama", **LLAMA), attention=True).graph
    plain, split = (
        parallelism_of(*laid_out(graph, Flags("Megatron", tp=2, sequence_parallel=sp)))[1].words()
        for sp in (False, True)
    )
    assert "sequence parallelism for" in split and "sequence parallelism" not in plain


def test_experts_and_keys() -> None:
    sizes = LLAMA | {"experts": 2, "chosen": 1}
    graph = zoo("moe", **sizes)
    (_, inner) = parallelism_of(*laid_out(recognise(graph, attention=True).graph, Flags("Megatron", ep=2)))
    assert dict(inner.shares).keys() >= {"expert", "data"}


def test_the_line_of_an_explanation() -> None:
    graph = recognise(zoo("llama", **LLAMA), attention=True).graph
    planning, x = laid_out(graph, Flags("Megatron", tp=2))
    found = explain(planning, tuple(x))
    assert "2 nodes: data parallelism" in render_explanation(found)
    assert "2 nodes: data parallelism" in str(found.to_json()["scheme"])


def test_state_by_bytes() -> None:
    def row(kept: str, size: int) -> StoredState:
        return StoredState("w", kept, "", "", "", "", "", "", size, size, 2 * size)

    rows = [row("data parallel, ZeRO-3", 97), row("tensor parallel, ZeRO-3", 1), row("data parallel", 2)]
    assert state_words(rows) == "ZeRO-3 98 %, data parallel 2 %"
    assert state_words([]) == ""


def test_routing_keeps_its_sequence_whole() -> None:
    """Places of tokens are counted along the sequence: Megatron's split sequences and experts still fit the space."""
    graph = recognise(zoo("moe", **(LLAMA | {"experts": 2, "chosen": 1})), attention=True).graph
    planning, x = laid_out(graph, Flags("Megatron", tp=2, ep=2, sequence_parallel=True))
    place = planning.operators["layer0.ffn.route.place"]
    assert planning.decisions[place].placement(x[place]).degree("s") == 1
    assert dict(parallelism_of(planning, x)[0].shares).keys() >= {"expert", "data"}
