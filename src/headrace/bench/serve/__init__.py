"""`headrace bench serve`: load on any OpenAI-compatible server, and what its clients see of it."""
