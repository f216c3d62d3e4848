"""Thin entry points: one experiment, one file."""
