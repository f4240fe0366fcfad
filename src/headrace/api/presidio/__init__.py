"""Presidio's API: analyze and anonymize."""
