"""One SQLite file for what outlives the process: the database, its schema, and the queries of each table."""
