"""Engines in processes of their own: the pipe, the worker, its supervision, and the models of one server."""
