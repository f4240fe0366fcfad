"""Dialects: from an inference request to a provider's bytes, and from the provider's stream to events."""
