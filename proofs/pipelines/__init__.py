"""Plans of pipelines: graph, machine, stages, schedule, and leaves that bound them from below."""
