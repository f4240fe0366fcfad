"""Anthropic's surface: messages, their streams, counts of tokens, errors."""
