"""What is described: graphs, machines, layouts, costs, problems, claims. Imports nothing of ours."""
