"""Logits to tokens: penalties, truncation, and draws from counter-based random numbers."""
