"""Training data of the chat models: one file per part of the mixture."""
