"""What a run has learned, in the formats of others."""

import json
import logging
from pathlib import Path

from orqa_jax.errors import OrqaError
from orqa_jax.models.bert import Params
from orqa_jax.models.export import export_tower
from orqa_jax.models.retriever import retriever_config_from_dict, tower_names
from orqa_jax.text.jsonl import read_jsonl
from orqa_jax.train import finetune, ict
from orqa_jax.train.checkpoint import load_model

logger = logging.getLogger(__name__)


def export_encoders(run: Path, out: Path) -> list[Path]:
    """Writes the encoders of a run for sentence-transformers (see `export_tower`).

    ``out/question_encoder`` is the fine-tuned one where the run has it; ``out/block_encoder`` is
    the one that made the index which that searches. Before fine-tuning, shared towers become one
    ``out/encoder``.

    Raises:
      OrqaError: the run has no trained retriever.
    """
    about, params, tokenizer = load_model(run / "ict" / "model", kind=ict.MODEL_KIND)
    config = retriever_config_from_dict(about["retriever"])
    question_name, block_name = tower_names(config)[0], tower_names(config)[-1]
    tuned: Params = {}
    blocks = params[block_name]
    if (run / "finetune" / "model" / "model.json").exists():
        about_answerer, answerer, _ = load_model(
            run / "finetune" / "model", kind=finetune.MODEL_KIND
        )
        # Fine-tuned on BM25 alone, it has no question tower.
        tuned = answerer.get("retriever", {})
        if "block_encoder_fingerprint" in about_answerer:
            blocks = tuned[block_name]
    towers = {
        "question_encoder": ((tuned or params)[question_name], about["question_length"]),
        "block_encoder": (blocks, about["block_length"]),
    }
    if config.shared_towers and not tuned:
        towers = {"encoder": (params[block_name], about["block_length"])}
    out.mkdir(parents=True, exist_ok=True)
    for name, (tower, length) in towers.items():
        export_tower(out / name, config, tower, tokenizer, length)
        logger.info("%s: exported.", out / name)
    return [out / name for name in towers]


def export_predictions(predictions: Path, out: Path) -> None:
    """Writes predictions as the official evaluation of NQ-open and ORQA reads them.

    One ``{"question": ..., "prediction": ...}`` a line. That evaluation knows questions by their
    text, so of a question that stands twice it keeps the last.

    Raises:
      OrqaError: a line has no question or no answer.
    """
    partial = out.with_name(out.name + ".partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("w", encoding="utf-8") as file:
        for where, record in read_jsonl(predictions):
            question, answer = record.get("question"), record.get("answer")
            if not isinstance(question, str) or not isinstance(answer, str):
                raise OrqaError(f"{where} needs a 'question' and an 'answer', both strings.")
            line = {"question": question, "prediction": answer}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    partial.replace(out)
