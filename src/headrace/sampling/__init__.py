"""Sampling parameters, logit processors and the sampler."""
