"""A file for each kind of source, each with its CONNECTOR."""
