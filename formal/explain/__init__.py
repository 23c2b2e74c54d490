"""Says in words and tables what a plan decided, why, and what it would take to change it."""
