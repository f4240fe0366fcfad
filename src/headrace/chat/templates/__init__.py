"""Chat templates: rendered in a sandbox with time and size limits."""
