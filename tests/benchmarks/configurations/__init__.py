"""Published steps as whole configurations, and what the plan's own model says of them."""
