"""Which tokens of which sequences run in the next step."""
