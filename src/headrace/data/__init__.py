"""SQL over data where it lives: datasets as views, statements checked on DuckDB's own parse tree and run in a
process of their own under limits."""
