"""Readers of documents, one file for each kind; each document in a process of its own under limits."""
