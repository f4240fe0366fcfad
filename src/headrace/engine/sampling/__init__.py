"""From the logits of a step to tokens: sampling, constraints, beam search, prompt scores."""
