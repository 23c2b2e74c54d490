"""Graph substitutions: semantics of both sides in index notation."""
