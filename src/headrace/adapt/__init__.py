"""Learn from one's own traffic: what is asked, and which of it a small model can answer."""
