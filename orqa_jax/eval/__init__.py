"""Evaluation: answer scores, recall and bootstrap intervals; numpy only."""
