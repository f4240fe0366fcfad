"""The OpenAI API: chat completions, completions, responses, embeddings, files and batches."""
