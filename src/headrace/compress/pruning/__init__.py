"""Makes checkpoints smaller by leaving out layers, parts of them, or weights."""
