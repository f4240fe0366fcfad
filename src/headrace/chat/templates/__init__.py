"""Chat templates: rendering in a sandbox within time and size limits."""
