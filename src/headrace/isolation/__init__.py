"""Work on untrusted input in processes of its own, under limits of time and memory."""
