"""Quantized safetensors checkpoints: one file per scheme, from its tensors to block types without loss."""
