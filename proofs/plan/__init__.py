"""The plan bundle: graph, machine, choices, totals and the certificate."""
