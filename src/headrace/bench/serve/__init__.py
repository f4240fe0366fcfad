"""`headrace bench serve`: load on any OpenAI-compatible server, measured at the clients."""
