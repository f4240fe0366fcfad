"""Training with torch and transformers (extra `train`)."""
