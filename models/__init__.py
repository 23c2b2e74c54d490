"""This package holds what is described: graphs, machines, layouts, costs, problems, claims. Imports nothing of ours."""
