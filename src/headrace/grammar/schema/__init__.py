"""JSON Schema of all drafts, rewritten to the keywords that llguidance keeps."""
