"""Alignment of question and answer words by their vectors (Yadav et al. 2018)."""
