"""Lowers a plan to one program of instructions per rank."""
