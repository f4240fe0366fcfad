"""Whether a form of a model may be loaded, by what was measured of it."""

from __future__ import annotations

import logging

from headrace.errors import QualityBelowBound
from headrace.executors.kv_layers import has_3_bits
from headrace.executors.native import is_coded
from headrace.loading.model_record import Form, MeasuredForm, read_cached, read_record
from headrace.loading.options import EngineOptions
from headrace.loading.planned_model import PlannedModel
from headrace.weights.hub.bundled import bundled_weights

LOG = logging.getLogger("headrace.loading")
_LOSSY = ("int8", "int4")
_OF_3_BITS = (
    "; 3 bits are not free: the bundled mini has 2 % more perplexity with them, and vLLM states 20.6 % more"
    " for its own type"
)


def form_of(prepared: PlannedModel, options: EngineOptions) -> Form:
    """What is rounded when the model is loaded like this."""
    choice = options.quantization
    if choice == "auto":
        choice = bundled_weights(prepared.folder) or "keep"
    kv = prepared.plan.kv_type
    return Form(choice if choice in _LOSSY else "keep", kv if is_coded(kv) else "auto")


def measured_of(prepared: PlannedModel, options: EngineOptions, form: Form) -> MeasuredForm | None:
    """The figures of a form: the record's beside the files, else those of this machine. Where the files are
    themselves a rounded form of another model, figures against these files say too little."""
    own, fingerprint = read_record(prepared.folder), prepared.checkpoint.fingerprint
    found = own.measured(form) or read_cached(options.cache_dir, fingerprint).measured(form)
    if found is None or (own.quality and found.reference_fingerprint == fingerprint):
        return None
    return found


def check_quality(prepared: PlannedModel, options: EngineOptions) -> None:
    """Raise QualityBelowBound where a bound is given that the form does not keep. Without one, a form of
    fewer than 8 bits that nobody has measured says so; keys and values of 3 bits say what they lose."""
    if prepared.model.pooling is not None:  # an encoder predicts nothing
        return
    form = form_of(prepared, options)
    bound = (options.quality or {}).get("max_kl")
    if form.is_stored and bound is None:
        return
    found, name = measured_of(prepared, options, form), prepared.name
    few = has_3_bits(prepared.plan.kv_type, prepared.kv)
    how = f"headrace bench quality {name} {form}"
    if found is not None:
        if bound is not None and not found.kl.mean <= bound:
            raise QualityBelowBound(
                f"{name} ({form}) has a mean KL divergence of {found.kl.mean:.5f} nats from"
                f" {found.reference}, [quality] allows {bound}: use a type with more bits, or raise max_kl",
                param="quality",
            )
        if few:
            LOG.warning("%s (%s) %s", name, form, _price(found))
    elif form.is_stored:  # as its makers gave it
        return
    elif bound is not None:
        raise QualityBelowBound(
            f"nobody has measured what {name} loses with {form}, and [quality] asks for a KL divergence of at"
            f" most {bound}: measure it with `{how}`",
            param="quality",
        )
    elif form.is_coarse:
        more = _OF_3_BITS if few else ""
        LOG.warning("%s: what %s loses was never measured; measure it with `%s`%s", name, form, how, more)


def _price(found: MeasuredForm) -> str:
    return (
        f"has a mean KL divergence of {found.kl.mean:.5f} nats from {found.reference},"
        f" {found.top1:.1%} of its most likely tokens and"
        f" {found.perplexity / found.reference_perplexity - 1:+.1%} perplexity"
    )
