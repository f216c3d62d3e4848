"""Blocks of evidence: reading documents, packing them, and the store they lie in."""
