"""A model as a flat list of instructions: record, verify, fuse, plan memory, print."""
