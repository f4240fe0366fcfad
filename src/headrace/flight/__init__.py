"""Arrow Flight SQL: statements of ADBC and JDBC clients over gRPC."""
