"""Metrics from engine events: counted as events pass, exposed to Prometheus."""
