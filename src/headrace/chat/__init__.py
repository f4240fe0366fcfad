"""Chat messages to prompt text by sandboxed templates, and model output to text, reasoning and tool calls."""
