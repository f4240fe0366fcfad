"""Heads of encoders: what follows the hidden states, defined in ops."""
