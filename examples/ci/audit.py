"""An audit in a repository's CI: fails when the strategy that is checked in is refuted by a plan that is more than 5 %
cheaper.

    python examples/ci/audit.py

Exit code 0: optimal, or within 5 %.  10: refuted; the difference is printed term by term.  5: undecided in the time.
"""

import sys
from fractions import Fraction
from pathlib import Path

import shardproof

HERE = Path(__file__).parent
report = shardproof.audit(
    "mlp-unity:batch=64", "localhost:4", HERE / "strategy.json", gap=Fraction(5, 100), time_limit_s=60
)
print(report)
sys.exit(report.exit_code)
