"""Learn from one's own traffic: what is asked, and which of it a small model can answer.

Imports go up in this order: `traffic`, `fine_tuning`, `students`, `decisions`, the files here (a server).
"""
