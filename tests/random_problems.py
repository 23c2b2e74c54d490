"""Random selection problems for tests: every generator is here, so that a new test takes one that is there.

    graphs_of_all_kinds      trees, cycles, dense and disconnected graphs; up to 6 vertices; rows if asked for
    shared_tables            tables shared through maps, parallel edges in both directions, rows; up to 4 vertices
    reducible                what presolve looks for: functional, separable, constant tables, nested intervals
    maps_and_holes           edges in both directions, some through maps, negative costs; 12 vertices
    rows_for_every_second    the same with three usages for every second vertex
    few_costs                rings, and costs so few that ties are everywhere
    frustrated               all pairs of six vertices: messages leave a gap
    chain, grid_of_tables    paths and grids, a table for every edge
    grid_with_rows           grids whose limit binds: no order eliminates a large one
    rows_some_bind           14 vertices, some with rows that bind
    layers_of_two_kinds      layers that are cheap or lean, and pay where they change
    repeated_blocks          blocks forward and backward, as in a training step

All depend on their arguments alone; seeds mean what they meant in the tests that name them.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from shardproof.models.problem.selection_problem import FORBIDDEN, Edge, SelectionProblem, Usage, Vertex


def _table(entry, rows: int, cols: int) -> np.ndarray:
    return np.array([[entry() for _ in range(cols)] for _ in range(rows)], dtype=np.int64).reshape(rows, cols)


def graphs_of_all_kinds(seed: int, *, rows: bool = False, largest: int = 6, labels: int = 4) -> SelectionProblem:
    """Trees, cycles, dense and disconnected graphs, forbidden entries, parallel edges, ties, constants, factored
    maps.
    """
    rng = random.Random(seed)
    n = rng.randint(1, largest)
    kind = rng.choice(["tree", "cycle", "dense", "sparse", "parallel", "empty"])
    sizes = [rng.randint(1, labels) for _ in range(n)]
    top = rng.choice([1, 3, 20, 1000, 10**9])
    holes = rng.choice([0.0, 0.0, 0.1, 0.3])
    low = rng.choice([0, 0, -top])

    def entry() -> int:
        return FORBIDDEN if rng.random() < holes else rng.randint(low, top)

    pairs: list[tuple[int, int]] = []
    if kind in ("tree", "parallel"):
        pairs = [(rng.randrange(i), i) for i in range(1, n)]
    if kind == "parallel":
        pairs += [rng.choice(pairs) for _ in range(2) if pairs]
    if kind == "cycle" and n > 2:
        pairs = [(i, (i + 1) % n) for i in range(n)]
    if kind in ("dense", "sparse"):
        chance = 0.9 if kind == "dense" else 0.35
        pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < chance]
    pairs = [(b, a) if rng.random() < 0.5 else (a, b) for a, b in pairs]
    tables: list[np.ndarray] = []
    edges: list[Edge] = []
    for a, b in pairs:
        if rng.random() < 0.5:  # factored
            shape = (rng.randint(1, 3), rng.randint(1, 3))
            known = [i for i, t in enumerate(tables) if t.shape == shape]
            if known and rng.random() < 0.7:
                index = rng.choice(known)
            else:
                index = len(tables)
                tables.append(_table(entry, *shape))
            rows_map = np.array([rng.randrange(shape[0]) for _ in range(sizes[a])], dtype=np.int64)
            cols_map = np.array([rng.randrange(shape[1]) for _ in range(sizes[b])], dtype=np.int64)
            edges.append(Edge(a, b, index, rows_map, cols_map))
        else:
            edges.append(Edge(a, b, len(tables)))
            tables.append(_table(entry, sizes[a], sizes[b]))
    vertices = tuple(
        Vertex(f"v{i}", np.array([entry() for _ in range(k)], dtype=np.int64)) for i, k in enumerate(sizes)
    )
    usages: list[Usage] = []
    limit = None
    if rows:
        steps = rng.randint(1, 5)
        for v in range(n):
            for _ in range(rng.randint(0, 2)):
                start = rng.randint(0, steps)
                amount = np.array([rng.randint(0, 9) for _ in range(sizes[v])], dtype=np.int64)
                usages.append(Usage(v, start, start + rng.randint(0, steps), amount))
        limit = rng.randint(0, 4 * n + 4)
    return SelectionProblem(
        f"random {seed}",
        vertices,
        tuple(tables),
        tuple(edges),
        tuple(usages),
        limit,
        constant=rng.choice([0, 0, 7, -5]),
    ).check()


def shared_tables(
    seed: int, *, n: int = 4, k: int = 4, forbidden: float = 0.15, rows: bool = True, low: int = -9
) -> SelectionProblem:
    """Up to `n` vertices, tables shared and factored at random, parallel edges and both directions, usages with a
    middling limit.
    """
    rng = random.Random(seed)

    def cost() -> int:
        return FORBIDDEN + rng.choice([0, 5]) if rng.random() < forbidden else rng.randint(low, 20)

    n = rng.randint(1, n)
    sizes = [rng.randint(1, k) for _ in range(n)]
    vertices = tuple(Vertex(f"v{i}", np.array([cost() for _ in range(s)], dtype=np.int64)) for i, s in enumerate(sizes))
    tables: list[np.ndarray] = []
    edges = []
    for _ in range(rng.randint(0, 2 * n) if n > 1 else 0):
        u, v = rng.sample(range(n), 2)
        if tables and rng.random() < 0.5:  # an old table through maps
            t = rng.randrange(len(tables))
            rows_, cols_ = tables[t].shape
            row = np.array([rng.randrange(rows_) for _ in range(sizes[u])], dtype=np.int64)
            col = np.array([rng.randrange(cols_) for _ in range(sizes[v])], dtype=np.int64)
            edges.append(Edge(u, v, t, row, col))
        else:
            tables.append(np.array([[cost() for _ in range(sizes[v])] for _ in range(sizes[u])], dtype=np.int64))
            edges.append(Edge(u, v, len(tables) - 1))
    usages, limit = [], None
    if rows:
        for v in range(n):
            for _ in range(rng.randint(0, 2)):
                start = rng.randint(0, 5)
                usages.append(
                    Usage(
                        v,
                        start,
                        start + rng.randint(0, 4),
                        np.array([rng.randint(0, 9) for _ in range(sizes[v])], dtype=np.int64),
                    )
                )
        limit = rng.randint(0, 9 * n // 2)
    return SelectionProblem(
        f"random {seed}", vertices, tuple(tables), tuple(edges), tuple(usages), limit, constant=rng.randint(-5, 5)
    ).check()


def reducible(seed: int, n: int = 6, k: int = 4) -> SelectionProblem:
    """1 to `n` vertices of 1 to `k` choices: trees, cycles, isolated vertices, parallel edges in both directions;
    tables that are random, functional, separable, constant or full of forbidden entries; usages with empty, equal and
    nested intervals; tight, loose or no limit."""
    rng = random.Random(seed)
    n = rng.randint(1, n)
    few = rng.random() < 0.5  # few distinct costs: ties
    top = rng.choice([2, 3, 9])
    low = rng.choice([0, 0, -3])
    hole = rng.choice([0.0, 0.1, 0.3, 0.5])

    def cost() -> int:
        return rng.randint(low, top) if few else rng.randint(-20, 99) if low else rng.randint(0, 99)

    sizes = [rng.randint(1, k) for _ in range(n)]
    vertices = []
    ordered = [rng.random() < 0.3 for _ in range(n)]  # costs and usages ascend together
    for v, size in enumerate(sizes):
        costs = [FORBIDDEN + rng.choice([0, 3]) if rng.random() < hole / 3 else cost() for _ in range(size)]
        vertices.append(Vertex(f"v{v}", np.array(sorted(costs) if ordered[v] else costs, dtype=np.int64)))

    def table(rows: int, cols: int) -> np.ndarray:
        kind = rng.choice(["random", "random", "functional", "functional", "separable", "holes", "line", "gate"])
        out = np.array([[cost() for _ in range(cols)] for _ in range(rows)], dtype=np.int64)
        if kind == "functional":
            g = [rng.randrange(rows) for _ in range(cols)]
            if rows == cols and rng.random() < 0.6:
                g = rng.sample(range(rows), rows)
            out[np.arange(rows)[:, None] != np.array(g)[None, :]] = FORBIDDEN
            return out.T.copy() if rows == cols and rng.random() < 0.5 else out
        if kind == "separable":
            return np.add.outer(out[:, 0], out[0])
        if kind == "gate":
            return np.array(
                [[FORBIDDEN if rng.random() < 0.4 else 0 for _ in range(cols)] for _ in range(rows)], dtype=np.int64
            )
        if kind == "line":
            out[rng.randrange(rows)] = FORBIDDEN
        if kind != "random" or rng.random() < 0.5:
            out[np.array([[rng.random() < hole for _ in range(cols)] for _ in range(rows)])] = FORBIDDEN
        return out

    tables: list[np.ndarray] = []
    edges: list[Edge] = []
    for _ in range(rng.randint(0, rng.choice([n, 2 * n])) if n > 1 else 0):
        u, v = rng.sample(range(n), 2)
        if edges and rng.random() < 0.15:
            u, v = rng.choice([(edges[-1].u, edges[-1].v), (edges[-1].v, edges[-1].u)])
        if tables and rng.random() < 0.15:
            t = rng.randrange(len(tables))
            rows, cols = tables[t].shape
            edges.append(
                Edge(
                    u,
                    v,
                    t,
                    *(
                        np.array([rng.randrange(s) for _ in range(sizes[w])], dtype=np.int64)
                        for s, w in ((rows, u), (cols, v))
                    ),
                )
            )
        else:
            tables.append(table(sizes[u], sizes[v]))
            edges.append(Edge(u, v, len(tables) - 1))
    usages, limit = [], None
    if rng.random() < 0.8:
        for v in range(n):
            for _ in range(rng.choice([0, 0, 1, 1, 2])):
                start = rng.randint(-1, 5)
                same = rng.random() < 0.25
                amount = [rng.randint(0, 6)] * sizes[v] if same else [rng.randint(0, 6) for _ in range(sizes[v])]
                usages.append(
                    Usage(
                        v,
                        start,
                        start + rng.choice([-1, 0, 1, 1, 2, 3, 5]),
                        np.array(sorted(amount) if ordered[v] else amount, dtype=np.int64),
                    )
                )
        limit = rng.randint(0, rng.choice([6, 12, 24]))
    return SelectionProblem(
        f"tiny {seed}", tuple(vertices), tuple(tables), tuple(edges), tuple(usages), limit, rng.randint(-5, 5)
    ).check()


def maps_and_holes(seed: int, vertices: int = 12, holes: bool = False) -> SelectionProblem:
    """Random edges in both directions, some through row and column maps, negative costs, forbidden entries if
    `holes`.
    """
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 5, vertices)]
    tables, edges = [], []
    for k in range(3 * vertices):
        u, v = (int(x) for x in rng.choice(vertices, 2, replace=False))
        rows = rng.integers(0, 2, sizes[u]) if k % 3 == 0 else None
        cols = rng.integers(0, 3, sizes[v]) if k % 4 == 0 else None
        table = rng.integers(-30, 60, (sizes[u] if rows is None else 2, sizes[v] if cols is None else 3))
        if holes:
            table = np.where(rng.random(table.shape) < 0.1, FORBIDDEN, table)
            table[0 if rows is None else rows[0], 0 if cols is None else cols[0]] = 0
        edges.append(Edge(u, v, len(tables), rows, cols))
        tables.append(table)
    costs = [rng.integers(-20, 50, n) for n in sizes]
    return SelectionProblem(
        "random", tuple(Vertex(f"v{i}", c) for i, c in enumerate(costs)), tuple(tables), tuple(edges), constant=17
    )


def rows_for_every_second(seed: int, limit: int) -> SelectionProblem:
    """Random problem, three usages for every second vertex and none for the others."""
    problem, rng = maps_and_holes(seed), np.random.default_rng(seed + 100)
    usages = []
    for v in range(0, len(problem.vertices), 2):
        for _ in range(3):
            start = int(rng.integers(0, 12))
            usages.append(
                Usage(v, start, start + int(rng.integers(0, 6)), rng.integers(0, 9, problem.vertices[v].cost.size))
            )
    return replace(problem, limit=limit, usages=tuple(usages))


def layers_of_two_kinds(n: int, seam: int, limit: int, seed: int, others: int = 260) -> SelectionProblem:
    """`n` layers, each cheap (cost 100, uses 60) or lean (cost 200, uses 20) or one of two others that lose to
    both; changing costs `seam`, all are live at once.
    """
    rng = np.random.default_rng(seed)
    cost = np.array([100, 200, others, others + 40])
    near = seam // 4
    table = np.array([[0, seam, near, seam], [seam, 0, seam, near], [near, seam, 0, seam], [seam, near, seam, 0]])
    use = np.array([60, 20, 40, 30])
    vertices = tuple(Vertex(f"layer{i}", cost + rng.integers(0, 3, 4)) for i in range(n))
    edges = tuple(Edge(i, i + 1, 0) for i in range(n - 1))
    return SelectionProblem(
        "row", vertices, (table,), edges, limit=limit, usages=tuple(Usage(i, 0, 1, use) for i in range(n))
    )


def repeated_blocks(
    count: int, seed: int, limit: int | None = None, width: int = 2, labels: int = 3
) -> SelectionProblem:
    """`count` blocks of `width` vertices forward, and the same number backward, as a training step: the last of
    block i - 1 meets the first of block i, and both parts meet in every block.
    """
    rng = np.random.default_rng(seed)
    costs = [rng.integers(0, 50, labels) for _ in range(2 * width)]
    inner, between, across = (rng.integers(0, 40, (labels, labels)) for _ in range(3))
    amounts = [rng.permutation(np.arange(1, labels + 1)) * 10 for _ in range(width)]
    vertices, edges, usages = [], [], []
    for side in (0, 1):
        for i in range(count):
            first = (side * count + i) * width
            for k in range(width):
                vertices.append(Vertex(f"{side}.{i}.{k}", costs[side * width + k]))
                if k:
                    edges.append(Edge(first + k - 1, first + k, 0))
                elif i:
                    edges.append(Edge(first - 1, first, 1))
                if side:
                    edges.append(Edge((count - 1 - i) * width + k, first + k, 2))
    steps = 2 * count
    if limit is not None:
        usages = [Usage(i * width + k, i, steps - i, amounts[k]) for i in range(count) for k in range(width)]
    return SelectionProblem(
        "blocks", tuple(vertices), (inner, between, across), tuple(edges), limit=limit, usages=tuple(usages)
    )


def chain(n: int, seed: int, labels: int = 9, top: int = 1000) -> SelectionProblem:
    """A path; every edge has a table of its own."""
    rng = np.random.default_rng(seed)
    vertices = tuple(Vertex(f"v{i}", rng.integers(0, top, labels)) for i in range(n))
    tables = tuple(rng.integers(0, top, (labels, labels)) for _ in range(n - 1))
    return SelectionProblem("chain", vertices, tables, tuple(Edge(i, i + 1, i) for i in range(n - 1)))


def grid_of_tables(n: int, seed: int, labels: int, top: int) -> SelectionProblem:
    """n x n vertices, edges to the right and down, every one with a table of its own."""
    rng = np.random.default_rng(seed)
    pairs = [(i * n + j, i * n + j + 1) for i in range(n) for j in range(n - 1)]
    pairs += [(i * n + j, i * n + j + n) for i in range(n - 1) for j in range(n)]
    vertices = tuple(Vertex(f"v{i}", rng.integers(0, top, labels)) for i in range(n * n))
    tables = tuple(rng.integers(0, top, (labels, labels)) for _ in pairs)
    return SelectionProblem("grid", vertices, tables, tuple(Edge(u, v, k) for k, (u, v) in enumerate(pairs)))


def grid_with_rows(n: int = 6, k: int = 6, rows: bool = True, seed: int = 0) -> SelectionProblem:
    """n x n vertices, edges to the right and down: no order eliminates it with small tables when n is large; a
    limit that binds with `resources`.
    """
    draw = np.random.default_rng(seed)
    vertices = tuple(Vertex(f"v{i}", draw.integers(0, 50, k)) for i in range(n * n))
    tables = tuple(draw.integers(0, 50, (k, k)) for _ in range(5))
    ends = [(i, i + 1) for i in range(n * n) if i % n < n - 1] + [(i, i + n) for i in range(n * n - n)]
    edges = tuple(Edge(u, v, e % 5) for e, (u, v) in enumerate(ends))
    usages = tuple(Usage(i, i // 2, i // 2 + n, draw.integers(1, 20, k)) for i in range(n * n)) if rows else ()
    live = [[u for u in usages if u.start <= t < u.end] for t in range(n * n)]
    tight = max(
        ((2 * sum(int(u.amount.min()) for u in us) + sum(int(u.amount.mean()) for u in us)) // 3 for us in live),
        default=0,
    )
    return SelectionProblem("grid", vertices, tables, edges, usages, tight if rows else None).check()


def frustrated(seed: int) -> SelectionProblem:
    """All pairs of six vertices: messages leave a gap."""
    rng = np.random.default_rng(seed)
    pairs = [(u, v) for u in range(6) for v in range(u + 1, 6)]
    vertices = tuple(Vertex(f"v{i}", rng.integers(0, 10, 3)) for i in range(6))
    return SelectionProblem(
        f"frustrated {seed}",
        vertices,
        tuple(rng.integers(0, 30, (3, 3)) for _ in pairs),
        tuple(Edge(u, v, k) for k, (u, v) in enumerate(pairs)),
    ).check()


def few_costs(seed: int) -> SelectionProblem:
    """Graphs of 2 to 6 vertices, rings among them, with so few distinct costs that ties are everywhere."""
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    sizes = [rng.randint(1, 3) for _ in range(n)]
    top = rng.choice([0, 1, 2])

    def cost() -> int:
        return FORBIDDEN if seed % 3 == 0 and rng.random() < 0.1 else rng.randint(0, top)

    vertices = tuple(Vertex(f"v{i}", np.array([cost() for _ in range(k)])) for i, k in enumerate(sizes))
    pairs = (
        [(i, (i + 1) % n) for i in range(n)]
        if seed % 2 and n > 2
        else [tuple(rng.sample(range(n), 2)) for _ in range(rng.randint(1, n + 1))]
    )
    tables = tuple(np.array([[cost() for _ in range(sizes[v])] for _ in range(sizes[u])]) for u, v in pairs)
    return SelectionProblem("few", vertices, tables, tuple(Edge(u, v, k) for k, (u, v) in enumerate(pairs))).check()


def rows_some_bind(seed: int) -> SelectionProblem:
    """14 vertices, some with rows that bind and some without."""
    r = np.random.default_rng(seed)
    vertices = tuple(Vertex(str(i), r.integers(0, 50, 4)) for i in range(14))
    tables = tuple(r.integers(0, 50, (4, 4)) for _ in range(5))
    edges = tuple(Edge(i, j, int(r.integers(0, 5))) for i in range(14) for j in range(i + 1, 14) if r.random() < 0.35)
    usages = []
    for i in range(14):
        start = int(r.integers(0, 10))
        usages.append(Usage(i, start, start + int(r.integers(1, 5)), r.integers(0, 10, 4)))
    return SelectionProblem("made up", vertices, tables, edges, tuple(usages), int(r.integers(15, 40))).check()
