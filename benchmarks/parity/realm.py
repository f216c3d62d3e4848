"""Makes the golden files of Hugging Face REALM with the last transformers that has it.

In an environment of its own:

    pip install torch transformers==4.57.6
    python benchmarks/parity/realm.py tests/golden/realm

Writes a tiny `RealmForOpenQA` as the `pytorch_model.bin` that torch saves, and what its embedder
and reader compute. tests/models/test_foreign.py compares with the result.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers.models.deprecated.realm.configuration_realm import RealmConfig
from transformers.models.deprecated.realm.modeling_realm import RealmForOpenQA

SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "retriever_proj_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "span_hidden_size": 4,
    "max_span_width": 3,
    "reader_beam_size": 2,
    "reader_seq_len": 32,
    "num_block_records": 5,
}


def main() -> None:
    out = Path(sys.argv[1])
    torch.manual_seed(11)
    model = RealmForOpenQA(RealmConfig(**SIZES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter + 0.3 * torch.randn_like(parameter))
        model.block_emb.copy_(torch.randn_like(model.block_emb))
        ids = torch.randint(1, SIZES["vocab_size"], (3, 12))
        mask = (torch.arange(12) < torch.tensor([[12], [7], [9]])).long()
        segments = (torch.arange(12) >= 4) * mask
        vectors = model.embedder(ids, mask, segments).projected_score
        hidden = model.reader.realm(ids, mask, segments).last_hidden_state
        logits, first, last = model.reader.qa_outputs(hidden, torch.ones_like(mask))
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out, safe_serialization=False)
    (out / "generation_config.json").unlink(missing_ok=True)
    arrays = {"ids": ids, "mask": mask, "segments": segments, "first": first, "last": last}
    arrays |= {"vectors": vectors, "span_logits": logits, "block_emb": model.block_emb}
    np.savez_compressed(out / "golden.npz", **{k: v.numpy() for k, v in arrays.items()})


if __name__ == "__main__":
    main()
