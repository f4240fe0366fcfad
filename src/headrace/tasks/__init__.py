"""What is done with an encoder in one pass: vectors of texts."""
