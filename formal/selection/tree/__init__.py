"""Branch and bound: runs, proof trees, branching, and searches of smaller problems on the way."""
