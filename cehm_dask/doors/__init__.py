"""Doors to where people already work: thin, each behind its own extra."""
