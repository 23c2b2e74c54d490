"""Plans a graph on a machine: space, time, recomputation, the strategy of a user."""
