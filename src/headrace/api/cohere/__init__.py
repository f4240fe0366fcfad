"""Cohere's API: embed and classify."""
