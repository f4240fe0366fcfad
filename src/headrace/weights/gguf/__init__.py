"""GGUF: reading and writing files, their tensors, configs, tokenizers and chat templates."""
