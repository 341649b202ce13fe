"""Checks of the NKI instruction model, grouped by what they look at."""
