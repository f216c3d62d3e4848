"""Question-answer examples."""
