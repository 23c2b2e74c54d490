"""Plans a graph on a machine: request, space, time and the strategy of a user; a folder for each search of its own
(overlap, pipelines, submeshes) and for several of them under one limit (portfolio)."""
