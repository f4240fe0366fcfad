"""Whether calls are recorded by OpenTelemetry: the standard variables say so, and what is not installed costs
nothing."""

from __future__ import annotations

import logging
import os

from headrace.config.extras import ExtraMissing, extra_module
from headrace.telemetry.ended_call import Tracing

LOG = logging.getLogger("headrace.telemetry")
EXTRA = "otel"
ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_TRACES_EXPORTER",
    "OTEL_METRICS_EXPORTER",
)


def configured_tracing() -> Tracing | None:
    """What records calls; None where no variable asks for it. UsageError where one is wrong; where the extra
    is not installed, one warning."""
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        module = extra_module(EXTRA, "headrace.telemetry.otel.recorder", "opentelemetry")
        recorder: Tracing = module.OtelRecorder()
    except (ExtraMissing, ModuleNotFoundError) as error:  # or a part of it is missing
        LOG.warning("OTEL_ variables are set, and nothing is sent: %s; pip install 'headrace[otel]'", error)
        return None
    return recorder
