"""Personal data: found by patterns with checksums and by models, replaced, and put back."""
