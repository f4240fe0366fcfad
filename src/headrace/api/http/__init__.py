"""HTTP for every API: the server, middleware, errors, limits, streams."""
