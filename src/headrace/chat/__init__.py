"""Messages to the prompt text of a model: templates in a sandbox with limits."""
