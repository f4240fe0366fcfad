"""One SQLite file for data that outlives the process: the database, its schema, and the queries per table."""
