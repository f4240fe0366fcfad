"""Requests in, events out: the only loop, its scheduler, and the loading of what it runs."""
