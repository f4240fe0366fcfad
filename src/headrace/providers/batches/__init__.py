"""Batches of providers: requests that they answer later, for less."""
