"""This package holds scheduling problems: tasks on streams of devices, pipelines of micro-batches among them."""
