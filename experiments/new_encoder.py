"""Makes a BERT of random weights, to pre-train by ICT alone.

    python -m experiments.new_encoder --tokenizer ENCODER --out runs/new_encoder --layers 4

The folder is laid out as any `BertModel` of Hugging Face; weights are drawn as BERT draws them,
from a normal distribution of 0.02 cut at two deviations (Devlin et al. 2019, released code).
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Bert, BertConfig
from orqa_jax.models.weights import save_bert
from orqa_jax.text.wordpiece import WordPiece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        tokenizer = WordPiece.load(options.tokenizer)
        config = BertConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=options.hidden_size,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            intermediate_size=4 * options.hidden_size,
        )
        write_new_bert(options.out, config, tokenizer, seed=options.seed)
    except OrqaError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def write_new_bert(out: Path, config: BertConfig, tokenizer: WordPiece, *, seed: int) -> None:
    """Writes a BERT of random weights with its tokenizer.

    Raises:
      OrqaError: There is something in the folder already.
    """
    if out.exists() and any(out.iterdir()):
        raise OrqaError(f"{out} is not empty; give the new encoder a folder of its own.")
    ids_BL = jnp.zeros((1, 1), jnp.int32)
    bert = Bert(config)
    params = jax.jit(bert.init)(jax.random.key(seed), ids_BL, ids_BL == 0, ids_BL)["params"]
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(out)
    save_bert(out, config, params)


if __name__ == "__main__":
    main()
