"""The commands of `headrace eval`."""
