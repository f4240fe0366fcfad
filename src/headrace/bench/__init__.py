"""Benchmarks: a step and its parts relative to the machine's limits, speculation, and a server under load."""
