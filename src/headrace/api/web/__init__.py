"""The page at / and what only it needs; its sources are in web/ of the repository."""
