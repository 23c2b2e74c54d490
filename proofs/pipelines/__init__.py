"""This package keeps plans of pipelines: graph, machine, stages, schedule, and the leaves that bound them from below."""
