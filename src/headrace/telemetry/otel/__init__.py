"""OpenTelemetry, by its own SDK: spans and metrics of calls that have ended. The extra `headrace[otel]`."""
