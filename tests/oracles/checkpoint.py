"""Writes checkpoint folders as they come from the Hugging Face hub."""

import json

from safetensors.numpy import save_file


def write_checkpoint(folder, config, weights):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder
