"""This package builds graphs operator by operator; every frontend ends here."""
