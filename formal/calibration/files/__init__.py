"""Calibrates a machine from files that users have: output of nccl-tests, Chrome traces, tables."""
