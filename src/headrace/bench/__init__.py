"""Speed as a share of what the machine can do: of a step, of its parts, of a server."""
