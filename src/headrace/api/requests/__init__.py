"""Requests that have ended, and EXPLAIN of them and of requests that are not run."""
