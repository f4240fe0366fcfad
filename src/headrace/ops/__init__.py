"""The op set: one file per op. The signature is the shape rule, the body the NumPy definition."""
