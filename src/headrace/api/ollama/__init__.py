"""Ollama's surface: the endpoints that its clients call, translated."""
