"""Several choices of one request: votes, rankings and shared budgets."""
