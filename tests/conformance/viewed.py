"""Plans with submeshes of the conformance suite: two branches of one product each on two devices, added up; a launch takes
so long that the branches run beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from budgets import work

from conformance.pipelines import machine
from conformance.writing import Head, Suite, changed, container
from shardproof.formal.plans.submeshes.memory import held_bytes
from shardproof.formal.plans.submeshes.search import plan_submeshes, whole_machine
from shardproof.models.layout.placement import Placement, space
from shardproof.models.layout.submesh import Submesh
from shardproof.models.machine.machine import Machine
from shardproof.models.problem.claims import Optimal
from shardproof.models.program.graph import Graph
from shardproof.models.sources.building.builder import Builder
from shardproof.models.sources.training import build_step
from shardproof.proofs.views.certificate import SubmeshCertificate
from shardproof.proofs.views.file import encode_submesh_plan


def branches() -> Graph:
    g = Builder("branches", "float32")
    ends = []
    for name in ("left", "right"):
        x, w = g.input(f"{name}.x", (4, 32)), g.parameter(f"{name}.w", (32, 32))
        ends.append(g.contract(name, "b k, k n -> b n", x, w))
    return g.build(g.map("join", "add", *ends, text="b n, b n -> b n"))


def by_hand(launch: str, where: str = "complete", train: bool = False) -> SubmeshCertificate:
    plain = machine()
    device = replace(plain.device, launch=Fraction(launch), peaks=(("float32", Fraction(10**12)),))
    stated = {k: v for k, v in plain.sources if "peaks" not in k}
    stated |= {
        f"device_class.{device.name}.{field}": "" for field in ("peaks.float32", *(["launch"] if device.launch else []))
    }
    sources = tuple((k, "assumption: a round number") for k in sorted(stated))
    slow: Machine = replace(plain, device=device, sources=sources)
    graph = build_step(branches(), "sgd").graph if train else branches()
    found = plan_submeshes(whole_machine(graph, slow, space(where)), clock=work(60.0)).certificate()
    assert found is not None
    return found


def suite() -> Suite:
    out = Suite("plan with submeshes")

    def add(name: str, verdict: str, sentence: str, c: SubmeshCertificate, fault: str = "") -> None:
        out.add(f"views-{name}", verdict, sentence, container(encode_submesh_plan(c)), fault=fault)

    good, whole = by_hand("1/10000"), by_hand("0")
    add("beside", "proved", "submeshes in use: 2", good)
    add("whole", "proved", "submeshes in use: 0", whole)
    add("narrow", "proved", "space one-per-level", by_hand("1/10000", "one-per-level"))
    turned = replace(good.regions[0], divisions=tuple(d[::-1] for d in good.regions[0].divisions))
    choices = tuple(
        (name, p if p.view is None else replace(p, view=Submesh((1 - p.view.starts[0], 0), p.view.counts)))
        for name, p in good.choices.operators
    )
    add(
        "turned",
        "refuted",
        "certificate",
        replace(good, regions=(turned,), choices=replace(good.choices, operators=choices)),
        "the certificate of other divisions",
    )

    most = held_bytes(good.graph, good.machine, good.regions, good.choices)
    add("memory", "proved", f"memory limit {most / 1024:.4g} KiB per device", replace(good, memory=most))

    def refuted(name: str, sentence: str, c: SubmeshCertificate, fault: str) -> None:
        add(name, "refuted", sentence, c, fault)

    def chosen(name: str, p: Placement) -> SubmeshCertificate:
        items = tuple((n, p if n == name else q) for n, q in good.choices.operators)
        return replace(good, choices=replace(good.choices, operators=items))

    left, right, join = (good.choices.of_operator(n) for n in ("left", "right", "join"))
    claim = good.least.claim
    assert isinstance(claim, Optimal)
    assert left.view is not None
    refuted(
        "memory-exceeded",
        f"the limit is {most - 1}",
        replace(good, memory=most - 1),
        "a byte less than a device holds",
    )
    refuted(
        "cost",
        "the claim says",
        replace(good, least=replace(good.least, claim=replace(claim, cost=claim.cost - 1))),
        "a time shorter than the plan's",
    )
    refuted(
        "same",
        "none of its divisions",
        chosen("left", replace(left, view=right.view)),
        "two branches on one submesh that no division gives them",
    )
    refuted(
        "matrix",
        "outside the space",
        chosen("left", replace(left, matrix=join.matrix)),
        "a placement on more devices than the view has",
    )
    one = good.regions[0]
    refuted(
        "join",
        "moves from one branch",
        replace(good, regions=(replace(one, branches=((("left",),), (("join",),))),)),
        "branches of which one reads the other",
    )

    step = by_hand("1/10000", train=True)
    add("step", "proved", "tied-backward", step)
    both = step.regions[0].branches
    refuted(
        "passes",
        "would have to wait for itself",
        replace(step, regions=(replace(step.regions[0], branches=tuple(b[::-1] for b in both[:1]) + both[1:]),)),
        "forward and backward pass of one branch exchanged",
    )
    refuted(
        "phases",
        "does not hang together",
        replace(
            step,
            regions=(
                replace(step.regions[0], branches=tuple((a[0], b[1]) for a, b in zip(both, both[::-1], strict=True))),
            ),
        ),
        "the backward passes of two branches exchanged",
    )

    members = encode_submesh_plan(good)

    def malformed(name: str, sentence: str, change: Callable[[Head], object], fault: str) -> None:
        data = container(changed(members, "views.json", change))
        out.add(f"views-{name}", "malformed", sentence, data, fault=fault)

    malformed("format", "reads 'shardproof-views/1' only", lambda h: h.update(format="x"), "another format")
    malformed("graph", "is not the hash", lambda h: h.update(graph_sha256="0" * 64), "the hash of another graph")
    malformed("alone", "two or more", lambda h: h["regions"][0].update(branches=[[["left"]]]), "a region of one branch")
    malformed(
        "three",
        "all of one phase or all of two",
        lambda h: h["regions"][0].update(branches=[[["left"], [], []], [["right"], [], []]]),
        "branches of three phases",
    )
    malformed(
        "division",
        "a submesh for every branch",
        lambda h: h["regions"][0].update(divisions=[[[[0, 0], [1, 1]]]]),
        "a division without a view for a branch",
    )
    return out
