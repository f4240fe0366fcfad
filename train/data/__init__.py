"""What the chat models learn from: one file per part of the mixture."""
