"""Benchmarks: each prints a table and writes JSON with the machine and the versions. Compare within one run only."""
