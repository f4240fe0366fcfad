"""Runs of a model with tools: the loop, its budget, its calls, its checks, and what is kept of it."""
