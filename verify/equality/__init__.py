"""Says whether a program on ranks computes what a program on one device computes, over the real numbers."""
