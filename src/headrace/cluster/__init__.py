"""Several replicas of a model: routing, processes on this machine and others, a simulator and a planner."""
