"""Fine-tuning jobs: low-rank adapters trained on uploaded conversations, beside what the server does."""
