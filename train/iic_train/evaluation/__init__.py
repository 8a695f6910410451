"""Metrics, baselines and reports."""
