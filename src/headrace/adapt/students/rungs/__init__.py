"""Students that write: low-rank adapters on a small model, made and served as those of fine-tuning."""
