"""Words for what `plan --best` leaves to its searches; apart, as every verb's table of options reads them."""

from __future__ import annotations

from typing import Final

FREEDOM_WORDS: Final = ("overlap", "stages", "submeshes", "rewrites", "recompute")
"""What `--without` takes beside `--best`."""
