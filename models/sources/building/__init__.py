"""Builds graphs operator by operator; every frontend ends here."""
