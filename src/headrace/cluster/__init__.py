"""Several replicas of a model: routing, processes on this machine and others, moves of KV pages."""
