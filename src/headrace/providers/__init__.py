"""Remote models: providers as data, dialects of their APIs, a handler for one target (extra `gateway`)."""
