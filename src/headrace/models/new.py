"""GTE as in its authors' checkpoints, whose `model_type` is `new`."""

from headrace.models.gte import encode, read_config

__all__ = ["encode", "read_config"]
