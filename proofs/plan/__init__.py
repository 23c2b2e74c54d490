"""This package holds the plan bundle: graph, machine, choices, totals and the certificate."""
