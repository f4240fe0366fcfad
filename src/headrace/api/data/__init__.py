"""SQL over datasets: /v1/sql, /v1/sql/explain, /v1/datasets."""
