"""Executors of a program: reference (NumPy), native (C++), torch (optional extra)."""
