"""Guesses of the next tokens, checked several in one step: drafters, and how many guesses pay."""
