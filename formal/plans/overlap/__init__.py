"""Plans with communication beside computation."""
