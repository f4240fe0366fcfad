"""The request path: one request type, one stream of events, handlers between a client and a model."""
