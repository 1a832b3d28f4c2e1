"""Benchmarks: each prints a table and writes JSON with the machine and the versions. Compare within one run only."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # before grpc is imported: its notes about closed streams are noise
