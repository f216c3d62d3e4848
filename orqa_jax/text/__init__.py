"""Text: sentences, wordpieces with character offsets, answer normalisation and matching."""
