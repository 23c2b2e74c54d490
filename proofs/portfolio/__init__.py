"""Several checked plans of one job, of which one is taken."""
