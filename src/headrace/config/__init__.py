"""Settings: one table, read from flags, environment variables and headrace.toml."""
