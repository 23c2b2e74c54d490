"""Writes down what a program computes, on one device or on ranks that send nothing: `python -m shardproof.capture`.

The words are those of `shardproof capture`, which this is: FILE.py:NAME [--ranks N] [--grad] -o FILE.spz.
"""

from __future__ import annotations

import sys

from shardproof.__main__ import run

if __name__ == "__main__":
    sys.exit(run(["capture", *sys.argv[1:]]))
