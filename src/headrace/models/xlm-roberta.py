"""XLM-RoBERTa: RoBERTa trained on 100 languages (BGE-M3, multilingual E5)."""

from headrace.models.roberta import encode, read_config

__all__ = ["encode", "read_config"]
