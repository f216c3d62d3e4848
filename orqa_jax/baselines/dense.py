"""Dense retrievers that nothing was trained for: what ICT has to beat (Lee et al. 2019, table 5).

Each is written as a model folder like that of ICT, so `orqa index` encodes the blocks with it and
`orqa finetune` trains its question side, as the paper does for these baselines.
"""

import dataclasses
from pathlib import Path
from typing import Literal

import jax

from orqa_jax.corpus.store import BlockStore
from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import truncate_bert
from orqa_jax.models.retriever import RetrieverConfig, init_dual_encoder
from orqa_jax.models.weights import fingerprint_params, load_bert
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train import ict
from orqa_jax.train.checkpoint import is_finished, save_model

Kind = Literal["static", "mean_pooled", "random_projection"]


@dataclasses.dataclass(frozen=True)
class UntrainedConfig:
    """Settings of an untrained retriever.

    Attributes:
      corpus: Folder of the block store.
      encoder: Folder of the pre-trained BERT.
      out: Folder of the model, in ``model``.
      kind: "static" averages the word vectors of the encoder's input layer (in the place of the
        paper's NNLM); "mean_pooled" averages its last hidden states (of the paper's ELMo); both
        keep all dimensions. "random_projection" takes the last state of [CLS] through a random
        orthogonal matrix to 128 dimensions: where ICT begins.
      question_length: Longest question in wordpieces, [CLS] and [SEP] counted.
      block_length: Longest block in wordpieces, title, [CLS] and two [SEP] counted.
      seed: Of the projection.
    """

    corpus: str
    encoder: str
    out: str
    kind: Kind
    question_length: int = 64
    block_length: int = 288
    seed: int = 0


def save_untrained(config: UntrainedConfig) -> Path:
    """Writes the retriever; returns the folder of the model.

    Raises:
      OrqaError: An input is missing, or inputs do not belong together.
    """
    folder = Path(config.out) / "model"
    store = BlockStore(Path(config.corpus))
    bert_config, bert_params = load_bert(Path(config.encoder))
    described = dataclasses.asdict(config) | {
        "corpus_fingerprint": store.fingerprint,
        "encoder_fingerprint": fingerprint_params(bert_params),
    }
    if is_finished(folder, kind=ict.MODEL_KIND, config=described):
        return folder
    tokenizer = WordPiece.load(Path(config.encoder))
    if tokenizer.fingerprint != store.tokenizer_fingerprint:
        raise OrqaError(
            f"The corpus {config.corpus} was built with another tokenizer than the encoder "
            f"{config.encoder} has; build the corpus again with --encoder {config.encoder}."
        )
    if config.kind == "static":
        bert_config, bert_params = truncate_bert(bert_config, bert_params, 0)
    random = config.kind == "random_projection"
    # As many dimensions as there are: the orthogonal start of the projection is then a rotation,
    # which changes no inner product.
    retriever_config = RetrieverConfig(
        bert=bert_config,
        projection_size=128 if random else bert_config.hidden_size,
        pooling="cls" if random else "mean",
    )
    save_model(
        folder,
        kind=ict.MODEL_KIND,
        description={
            "retriever": dataclasses.asdict(retriever_config),
            "question_length": config.question_length,
            "block_length": config.block_length,
            "config": described,
        },
        params=init_dual_encoder(retriever_config, jax.random.key(config.seed), bert_params),
        tokenizer=tokenizer,
    )
    return folder
