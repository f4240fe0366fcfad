"""The encoder of mT5: T5's with more languages and a gated MLP."""

from headrace.models.t5 import encode, read_config

__all__ = ["encode", "read_config"]
