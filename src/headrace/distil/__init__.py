"""Distillation: a small model learns what a larger one says. What needs torch is in `learning/`."""
