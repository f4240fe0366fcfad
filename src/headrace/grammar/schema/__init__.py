"""JSON Schemas before they are compiled: every keyword is enforced, an annotation, or refused by name."""
