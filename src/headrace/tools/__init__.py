"""Tools that this server calls itself: those of MCP servers, its own, and agents that use them."""
