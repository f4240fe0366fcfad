"""Endpoints measured over time: latency, speed, errors, price, quality, and whether they do what they say."""
