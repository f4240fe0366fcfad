"""Executors of a program: reference (NumPy), native (C++), torch (an extra)."""
