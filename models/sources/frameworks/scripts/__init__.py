"""Launch scripts of a shell: their parts, their words, and what they start, without running any of it."""
