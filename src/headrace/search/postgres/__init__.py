"""Indexes in PostgreSQL with the extension pgvector. Needs the extra pgvector."""
