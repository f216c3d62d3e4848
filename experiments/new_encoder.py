"""Makes a BERT of random weights, to pre-train by ICT alone.

    python -m experiments.new_encoder --tokenizer ENCODER --out runs/new_encoder --layers 4
    python -m experiments.new_encoder --documents FILE... --out runs/new_encoder --vocabulary 16000

The second learns its vocabulary from documents, for a language that no encoder at hand knows. The
folder is laid out as any `BertModel` of Hugging Face; weights are drawn as BERT draws them,
from a normal distribution of 0.02 cut at two deviations (Devlin et al. 2019, released code).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from orqa_jax.corpus.readers import read_documents
from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Bert, BertConfig
from orqa_jax.models.weights import save_bert
from orqa_jax.text.wordpiece import WordPiece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = parser.add_mutually_exclusive_group(required=True)
    words.add_argument("--tokenizer", type=Path, help="folder of the tokenizer")
    words.add_argument(
        "--documents", type=Path, nargs="+", help="files and folders, as for `orqa corpus`"
    )
    parser.add_argument(
        "--vocabulary", type=int, default=16_000, help="wordpieces to learn (16000)"
    )
    parser.add_argument("--cased", action="store_true", help="keep case and accents")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        if options.tokenizer:
            tokenizer = WordPiece.load(options.tokenizer)
        else:
            tokenizer = learn_tokenizer(options.documents, options.vocabulary, cased=options.cased)
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


def learn_tokenizer(sources: Sequence[Path], size: int, *, cased: bool) -> WordPiece:
    """A WordPiece tokenizer whose vocabulary is learned from documents.

    Raises:
      OrqaError: A source cannot be read, or there is no text.
    """
    texts = (f"{document.title}\n{document.text}" for document in read_documents(sources))
    return WordPiece.learn(texts, size, lowercase=not cased)


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
