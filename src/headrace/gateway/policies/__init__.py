"""Policies of routes: each orders the targets of a request. A file of this folder is a policy."""
