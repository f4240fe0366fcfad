"""Constrained decoding: JSON schemas, regular expressions and grammars as token masks."""
