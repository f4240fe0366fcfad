"""CamemBERT: RoBERTa trained on French."""

from headrace.models.roberta import encode, read_config

__all__ = ["encode", "read_config"]
