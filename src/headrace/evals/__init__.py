"""Evaluations of models by suites of cases: evaluators, a calibrated judge, intervals and comparisons."""
