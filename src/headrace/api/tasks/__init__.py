"""Endpoints of tasks that are answered in one pass: entities and others."""
