"""Plans training steps on pipelines: cuts, views, placements and micro-batches together."""
