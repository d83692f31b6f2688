"""The kinds of task that labels can make. Imports nothing, so that reading data needs no numpy."""

from __future__ import annotations

SINGLE, MULTI, REGRESSION = "single_label", "multi_label", "regression"
TASKS = (SINGLE, MULTI, REGRESSION)
