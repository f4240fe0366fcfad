"""The Model Context Protocol, both ways. Needs headrace[tools]."""
