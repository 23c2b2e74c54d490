"""This package holds branch and bound: runs, proof trees, branching, and searches of smaller problems on the way."""
