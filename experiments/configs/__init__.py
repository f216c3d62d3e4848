"""Config files of the experiments."""
