"""Speculative decoding: drafters propose tokens, a controller says how many of them a step verifies."""
