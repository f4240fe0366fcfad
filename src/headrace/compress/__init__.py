"""Makes models smaller: weights calibrated on text."""
