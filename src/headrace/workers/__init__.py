"""Engines in separate processes: protocol, transport, worker process, supervision, and the model manager."""
