"""How models write tool calls: one description per family, from which grammar and parser come."""
