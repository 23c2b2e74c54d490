"""Section 5: claims and records as they stand in a file."""

from __future__ import annotations

import re

from .reading import Malformed, Pool, fields, integer, items, need, parse_json, read_members, text


def read_certificate(data: bytes) -> tuple[str, dict, list[dict]]:
    """(hash of the problem, claim, records), with arrays in place of references."""
    members = read_members(data)
    need("certificate.json" in members and "plan.json" not in members, "holds no selection certificate")
    head = fields(parse_json(members["certificate.json"][0]), "format problem_sha256 claim records shapes")
    need(head["format"] == "shardproof-selection-certificate/1", "format of the certificate")
    need(re.fullmatch("[0-9a-f]{64}", text(head["problem_sha256"]), re.ASCII), "problem_sha256")
    pool = Pool(members, "certificate", head["shapes"])
    return head["problem_sha256"], read_claim(head["claim"], pool), read_records(head["records"], pool)


def read_claim(claim: object, pool: Pool) -> dict:
    need(isinstance(claim, dict), "claim must be an object")
    kind = claim.get("kind")
    if kind == "infeasible":
        c = fields(claim, "kind steps vertices least_limit witness")
        limit, witness = c["least_limit"], c["witness"]
        return {
            "kind": kind,
            "steps": pool.numbers(c["steps"]),
            "vertices": pool.numbers(c["vertices"]),
            "least_limit": None if limit is None else integer(limit, 0),
            "witness": None if witness is None else pool.numbers(witness),
        }
    wanted = {"optimal": "solution cost", "within-gap": "solution cost lower_bound", "lower-bound": "lower_bound"}
    need(kind in wanted, f"unknown claim {kind!r}")
    c = fields(claim, "kind " + wanted[kind])
    out = {k: integer(c[k]) for k in ("cost", "lower_bound") if k in c}
    return {"kind": kind, **out, **({"solution": pool.numbers(c["solution"])} if "solution" in c else {})}


def read_records(listed: object, pool: Pool) -> list[dict]:
    records = items(listed, 100_000)
    need(records, "the proof is empty")
    parents = [0] * len(records)
    out = []

    def children(number: int, value: object, most: int = 100_000) -> list[int]:
        found = [integer(child, number + 1, len(records) - 1) for child in items(value, most)]
        for child in found:
            parents[child] += 1
        return found

    def pairs(value: object) -> list[tuple[int, int]]:
        need(all(len(items(p)) == 2 for p in items(value)), "multipliers must be pairs")
        return [(integer(t), integer(n)) for t, n in value]

    for i, r in enumerate(records):
        need(isinstance(r, dict), "a record must be an object")
        match r.get("kind"):
            case "dual":
                fields(r, "kind to_u to_v denominator multipliers then", "rounded")
                rows = items(r.get("rounded", []))
                need(all(len(items(row)) == 4 for row in rows), "a rounded row has four parts")
                out.append(
                    {
                        "to_u": pool.arrays_of(r["to_u"]),
                        "to_v": pool.arrays_of(r["to_v"]),
                        "q": integer(r["denominator"]),
                        "multipliers": pairs(r["multipliers"]),
                        "then": children(i, r["then"], 1),
                        "rounded": [(*(integer(n) for n in row[:3]), pool.array(row[3])) for row in rows],
                    }
                )
            case "split":
                fields(r, "kind vertex parts children")
                out.append(
                    {
                        "vertex": integer(r["vertex"]),
                        "parts": pool.lists(r["parts"]),
                        "children": children(i, r["children"]),
                    }
                )
            case "elimination":
                fields(r, "kind order scopes messages", "fine then")
                need(type(r.get("fine", False)) is bool, "fine must be true or false")
                out.append(
                    {
                        "order": pool.numbers(r["order"]),
                        "scopes": pool.lists(r["scopes"]),
                        "messages": pool.arrays_of(r["messages"]),
                        "fine": r.get("fine", False),
                        "then": children(i, r.get("then", []), 1),
                    }
                )
            case "row-conflict":
                out.append({"multipliers": pairs(fields(r, "kind multipliers")["multipliers"])})
            case "point" | "open":
                fields(r, "kind")
                out.append({})
            case "reduced":
                fields(r, "kind log steps then")
                need(len(items(r["log"])) == 4, "a log has four columns")
                columns = [pool.array(c, 1).numbers for c in r["log"]]
                need(len({len(c) for c in columns}) == 1, "columns of a log differ in length")
                then = children(i, r["then"], 1)
                need(then, "needs a record about the reduced problem")
                log = list(zip(*columns, strict=True))
                out.append({"log": log, "steps": [a for a in pool.arrays_of(r["steps"])], "then": then})
            case other:
                raise Malformed(f"unknown record {other!r}")
        out[-1]["kind"] = r["kind"]
    need(parents[0] == 0 and all(n == 1 for n in parents[1:]), "every record but the first has one parent")
    return out
