"""Clusters that serve a trace, simulated: the engine's scheduler and the server's router, without tokens."""
