"""The adaptive loop over HTTP."""
