"""Errors, files, locks and the console: what every other package may use."""
