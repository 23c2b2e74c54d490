"""Generates rewrite rules, proves them, refutes them, derives one from others, and chooses among them with the
placement (`egraphs`, `joint`)."""
