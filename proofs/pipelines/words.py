"""Words for what a pipelined plan may be told to do without; apart, as every verb's table of options reads them."""

from __future__ import annotations

FORBIDDEN_WORDS = ("tensor", "data", "sharding")
"""What may be forbidden: `verify.pipelines.forbidden`."""
