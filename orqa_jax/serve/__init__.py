"""The answering service: ``orqa serve RUN``."""
