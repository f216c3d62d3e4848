"""Neural models: BERT, the dual encoder, the span reader, and their weights in and out."""
