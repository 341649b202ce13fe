"""Checks of the NKI instruction model, grouped by subject."""
