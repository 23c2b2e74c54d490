"""Prints the options of the search: `shardproof solve --options`."""

from __future__ import annotations

from ...models.terminal.console import Exit, emit, say
from ..plans.report import table_text
from ..selection.options import OPTIONS, list_options


def print_options(as_json: bool) -> int:
    """Every tuning constant of the search with its value, unit and reason, as a table or as one JSON object.

    The object maps the dotted name of an option to its `value` (text; several are separated by spaces), `unit` and
    `reason`.
    """
    rows = list(list_options(OPTIONS))
    if as_json:
        emit({"options": {r.name: {"value": r.value, "unit": r.unit, "reason": r.reason} for r in rows}})
    else:
        table = [(r.name, r.value, r.unit, r.reason) for r in rows]
        say(table_text(f"{len(rows)} options of the search", ("option", "value", "unit", "reason"), table, right=(1,)))
    return Exit.DONE
