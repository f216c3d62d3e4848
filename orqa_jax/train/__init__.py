"""Training: the Inverse Cloze Task, encoding of the corpus, and fine-tuning end to end."""
