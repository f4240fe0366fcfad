"""Tools: /v1/tools, /v1/mcp."""
