"""Tool call formats: one description per model family, which yields both grammar and parser."""
