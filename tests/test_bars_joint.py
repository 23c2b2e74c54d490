"""Differences of two plans within error bounds, every constant moved once for both: they hold on machines drawn from the
bars, builder and checker find the same ends with code of their own, and what is narrower is refused.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
from loop_cases import powers
from test_bars import barred, drawn

from shardproof.formal.explain.envelopes import Constants, product_entries
from shardproof.formal.explain.error_bounds import Box, lower_bound_within
from shardproof.models.cost.selection import Planning, build
from shardproof.models.layout.placement import space
from shardproof.models.machine.error_bounds import extreme, widest
from shardproof.models.machine.machine import Machine, load_machine
from shardproof.models.machine.measured import ProductForm
from shardproof.models.machine.parts import Profile
from shardproof.models.problem.selection_problem import FORBIDDEN
from shardproof.models.program.graph import Graph
from shardproof.models.sources.training import build_step
from shardproof.models.sources.zoo import build as zoo
from shardproof.models.sources.zoo.gpt import gpt
from shardproof.proofs.plan.error_bounds import Against, ErrorBounds
from shardproof.verify.plan.error_bound_ends import end, widest_error_bound
from shardproof.verify.plan.error_bound_forms import Product, Spans
from shardproof.verify.plan.error_bounds import _Box, wrong_error_bounds
from shardproof.verify.plan.measured import computing

BUILTIN = Path(__file__).parent.parent / "models/machine/builtin"


def any_plan(planning: Planning, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(v.cost.size) for v in planning.problem.vertices)


def cases() -> Iterator[tuple[Graph, Machine, str]]:
    yield zoo("transformer-layer"), barred("dgx-a100:2x4", "25 %", "60 %"), "one-per-level"
    step = build_step(zoo("mlp-unity"), "sgd", None).graph
    yield step, barred("dgx-a100:1x4", "40 %", "20 %"), "two-per-level"
    small = gpt(batch=8, depth=1, sequence=64, width=192, heads=3, vocabulary=1000)
    yield small, replace(load_machine("dgx-h100:1x8")), "one-per-level"
    yield small, barred("cloud-a100:2x2", "30 %", "90 %"), "complete"
    sizes = {"sequence": 64, "width": 64, "heads": 4, "kv_heads": 2, "hidden": 128, "vocabulary": 96}
    attends = zoo("llama-3-8b", batch=2, layers=1, **sizes)
    yield build_step(attends, "sgd").graph, load_machine("dgx-h100:2x2"), "one-per-level"
    yield powers(turns=20, batch=8, width=512), barred("dgx-a100:2x2", "25 %", "60 %"), "complete"


@pytest.mark.parametrize("number", [k if k in (1, 3, 5) else pytest.param(k, marks=pytest.mark.slow) for k in range(6)])
def test_differences_hold_on_machines_within_the_bars(number: int) -> None:
    graph, machine, name = list(cases())[number]
    rng, where = random.Random(number), space(name)
    planning = build(graph, machine, where)
    pairs = [(any_plan(planning, rng), any_plan(planning, rng)) for _ in range(2)]
    pairs += [(x, tuple(rng.choice(c) for c in zip(x, y, strict=True))) for x, y in pairs]
    box, checker = Box(planning), _Box(planning)
    found = [box.difference(x, y) for x, y in pairs]
    for m in (machine, extreme(machine, False), extreme(machine, True), *(drawn(machine, rng) for _ in range(3))):
        for (x, y), (least, most, _) in zip(pairs, found, strict=True):
            assert least <= box.terms.cost_at(y, m) - box.terms.cost_at(x, m) <= most
    narrower = 0
    for (x, y), (least, most, _) in zip(pairs, found, strict=True):
        again = checker.difference(x, y)
        assert least <= again[0] < least + 1 and most - 1 < again[1] <= most
        plain = checker.apart(x, y)
        assert again[0] >= plain[0] and again[1] <= plain[1]
        narrower += again[0] > plain[0] and again[1] < plain[1]
        claim = Against("other", planning.choices(y), least, most, "")
        bars = ErrorBounds(box.cost(x), lower_bound_within(0, planning), (claim,))
        assert not wrong_error_bounds(planning, x, bars, 0)
        for tighter in (replace(claim, least=least + 1), replace(claim, most=most - 1)):
            assert "the difference lies between" in wrong_error_bounds(
                planning, x, replace(bars, against=(tighter,)), 0
            )
    assert narrower >= 2


def machine_of(rng: random.Random) -> Machine:
    """One kind of product with constants and bars that are drawn."""
    tiles = tuple(
        (a, b, Fraction(rng.randint(20, 200), 10**8)) for a, b in rng.sample(list(product((32, 64, 256), repeat=2)), 3)
    )
    constants = [Fraction(rng.choice([0, rng.randint(1, 90)]), 10**7) for _ in range(6)]
    constants[4] /= 10**5
    constants[5] /= 10**5
    form = ProductForm(
        "bfloat16", rng.choice([7, 108]), tuple(sorted(tiles)), *constants, Fraction(rng.randint(0, 3), 8)
    )
    machine = load_machine("dgx-a100:1x4")
    machine = replace(machine, device=replace(machine.device, products=(form,)))
    place = f"device_class.{machine.device.name}"
    paths = [f"{place}.bandwidth", f"{place}.peaks.bfloat16"]
    paths += [f"{place}.product.bfloat16.{f.name}" for f in fields(form)[3:]]
    paths += [f"{place}.product.bfloat16.tiles.{a}x{b}" for a, b, _ in form.tiles]
    return replace(machine, bars=tuple((p, Fraction(rng.randint(1, 60), 100)) for p in paths if rng.random() < 0.8))


@dataclass(frozen=True)
class Sized:
    """A product on one device; picoseconds without the launch."""

    sizes: tuple[int, int, int, int]
    moved: int
    epilogue: int

    def units(self, m: Machine) -> Fraction:
        (form,) = m.device.products
        results = self.sizes[0] * self.sizes[1] * self.sizes[2]
        computes = computing(form, *self.sizes) + self.epilogue * results / m.device.peak("bfloat16")
        return 10**12 * (max(computes, self.moved / m.device.bandwidth) + form.result * results)


def test_a_product_under_two_placements() -> None:
    """The most that one takes longer than the other: the same twice, and nothing drawn is beyond it; often it is met
    up to a tenth of what two extreme machines give.
    """
    rng, close = random.Random(3), 0
    for _ in range(40):
        machine = machine_of(rng)
        (form,) = machine.device.products
        two = [tuple(rng.choice([1, 2, 3]) if i == 0 else rng.randint(1, 40) * 32 for i in range(4)) for _ in range(2)]
        moved = [rng.randint(1, 10 ** rng.randint(3, 9)) for _ in range(2)]
        epilogue = rng.choice([0, 3])
        ends = extreme(machine, False), extreme(machine, True)
        box, place = Constants(machine, *ends, 10**12), f"device_class.{machine.device.name}"
        y, x = (
            product_entries(form, s, epilogue * s[0] * s[1] * s[2], n, place) for s, n in zip(two, moved, strict=True)
        )  # type: ignore[arg-type]
        spans = Spans(machine, 10**12)
        again = [Product(form, s, n, epilogue) for s, n in zip(two, moved, strict=True)]
        most = box.apart(y, x)
        assert most == spans.gap(again[0], again[1], form)

        one, other = (Sized(s, n, epilogue) for s, n in zip(two, moved, strict=True))
        seen = [one.units(m) - other.units(m) for m in (*ends, *(drawn(machine, rng) for _ in range(15)))]
        assert max(seen) <= most
        plain = one.units(ends[1]) - other.units(ends[0])
        close += most - max(seen) <= abs(plain - max(seen)) / 10
    assert close >= 6


@pytest.mark.parametrize("path", sorted(BUILTIN.glob("*.toml")), ids=lambda p: p.stem)
def test_ends_of_bars_are_found_twice(path: Path) -> None:
    machine = load_machine(path.stem)
    profile = Profile("product", "bfloat16", (8, 8, 8), Fraction(1234567, 10**12))
    machine = replace(machine, profiles=(profile, replace(profile, extents=(9, 8, 8), seconds=Fraction(1, 10**12))))
    rng = random.Random(path.stem)
    paths = [p for p, _ in machine.sources] + [p for p, _ in machine.bars] + [p.path for p in machine.profiles]
    mine = tuple(sorted((p, Fraction(rng.randint(1, 5000), 1000)) for p in {*paths}))
    for one in (machine, replace(machine, bars=mine)):
        assert widest_error_bound(one) == widest(one)
        for slow in (False, True):
            assert end(one, slow) == extreme(one, slow)
    assert end(replace(machine, bars=mine), True) != end(replace(machine, bars=mine), False)


def test_another_plan_whose_choices_are_forbidden_is_refused() -> None:
    machine = barred("dgx-a100:1x2")
    planning = build(zoo("mlp-unity"), machine, space("one-per-level"))
    box, rng = Box(planning), random.Random(1)
    x, y = any_plan(planning, rng), any_plan(planning, rng)
    v = next(v for v in planning.operators.values() if x[v] != y[v])
    least, most, _ = box.difference(x, y)
    bars = ErrorBounds(box.cost(x), 0, (Against("other", planning.choices(y), least, most, ""),))
    assert not wrong_error_bounds(planning, x, bars, 0)
    cost = planning.problem.vertices[v].cost.copy()
    cost[y[v]] = FORBIDDEN
    vertices = list(planning.problem.vertices)
    vertices[v] = replace(vertices[v], cost=cost)
    forbidden = replace(planning, problem=replace(planning.problem, vertices=tuple(vertices)))
    assert wrong_error_bounds(forbidden, x, bars, 0) == "bars: against 'other': its choices are forbidden"
