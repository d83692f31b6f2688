"""`mixwell methods`."""

from __future__ import annotations


def command() -> None:
    """List the methods: what each one blends, what a step costs, and when to use it."""
    from mixwell.report.terminal import show_methods

    show_methods()
