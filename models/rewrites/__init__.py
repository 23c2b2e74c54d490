"""This package holds graph substitutions: semantics of both sides in index notation."""
