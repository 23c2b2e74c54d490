"""Plans with submeshes: placements, the regions and divisions they are optimal over, a certificate."""
