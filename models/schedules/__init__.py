"""Scheduling problems: tasks on streams of devices, pipelines of micro-batches among them."""
