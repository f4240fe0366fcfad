"""Low-rank adapters (LoRA) in files: folders of PEFT and GGUF adapters."""
