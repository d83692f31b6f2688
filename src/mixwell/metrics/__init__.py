"""Metrics: pure functions of outputs and labels."""
