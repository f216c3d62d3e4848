"""Times one question to its answer against a torch pipeline of the same sizes, in one run.

Needs torch and transformers beside the package (they are no dependency):

    python -m benchmarks.answer_latency runs/quickstart runs/quickstart/test.jsonl

The pipeline tokenizes, encodes the question, searches the same vectors exactly for 100 blocks,
reads the same number of them, scores every span and looks up the characters of the best, with
`transformers.BertModel` (sdpa, float32, `inference_mode`) of the run's sizes and random weights, so
that it reads other blocks. Ours does what `orqa serve` does for each question, five candidates
included. They take turns, eight questions each, so that what else runs on the machine weighs on
both alike.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from orqa_jax.index.embeddings import open_embeddings
from orqa_jax.predict import load_answerer
from orqa_jax.qa.examples import load_examples
from orqa_jax.text.wordpiece import WordPiece
from orqa_jax.train.checkpoint import describe_model
from orqa_jax.train.retrieve import reader_inputs

TURN = 8
RETRIEVED = 100


def torch_pipeline(run: Path, about: dict[str, Any], ours: Any) -> Callable[[str], str]:
    store, sizes = ours.store, ours.reader.sizes
    tokenizer = WordPiece.load(store.tokenizer_folder)
    vectors_NP = torch.from_numpy(
        np.array(
            open_embeddings(
                run / "index",
                corpus_fingerprint=store.fingerprint,
                weights_fingerprint=about["retriever_fingerprint"],
            )
        )
    )

    def bert(sizes: dict[str, Any]) -> BertModel:
        return BertModel(BertConfig(**sizes), add_pooling_layer=False).eval()

    encoder, reader = bert(about["retriever"]["bert"]), bert(about["reader"]["bert"])
    hidden, width = about["reader"]["bert"]["hidden_size"], sizes.span_width
    project = torch.nn.Linear(hidden, vectors_NP.shape[1])
    inner = about["reader"]["span_hidden_size"]
    start, end = torch.nn.Linear(hidden, inner), torch.nn.Linear(hidden, inner)
    score = torch.nn.Sequential(
        torch.nn.ReLU(), torch.nn.LayerNorm(inner), torch.nn.Linear(inner, 1)
    )

    @torch.inference_mode()
    def answer(question: str) -> str:
        ids = tokenizer.encode([question])[0].ids
        tokens = torch.tensor([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
        vector_P = project(encoder(tokens).last_hidden_state.mean(1))[0]
        _, found = torch.topk(vectors_NP @ vector_P, RETRIEVED)
        beam = reader_inputs(store, tokenizer, [ids], found[None, : sizes.read].numpy(), sizes)
        longest = int(beam["mask"][0].sum(1).max())
        token_ids, mask, segments, spans = (
            torch.from_numpy(beam[name][0, :, :longest])
            for name in ("token_ids", "mask", "segment_ids", "span_mask")
        )
        states_KLH = reader(
            token_ids.long(), attention_mask=mask.long(), token_type_ids=segments.long()
        ).last_hidden_state
        ends_KLI = torch.nn.functional.pad(end(states_KLH), (0, 0, 0, width - 1))
        pairs_KLWI = start(states_KLH)[:, :, None] + ends_KLI.unfold(1, width, 1).transpose(2, 3)
        logits_KLW = score(pairs_KLWI)[..., 0].masked_fill(~spans, -torch.inf)
        k, first, extra = np.unravel_index(int(logits_KLW.argmax()), logits_KLW.shape)
        text = store.text(int(found[k]))
        encoded = tokenizer.encode([text])[0]
        place = int(first) - len(ids) - 2
        return text[encoded.starts[place] : encoded.ends[place + int(extra)]]

    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("questions", type=Path, help="JSONL")
    parser.add_argument("--turns", type=int, default=12, help="of eight questions each (12)")
    options = parser.parse_args()
    answerer = load_answerer(options.run)
    about = describe_model(options.run / "finetune" / "model", kind="question answerer")
    systems: dict[str, Callable[[str], Any]] = {
        "ours": lambda question: answerer.answer([question]),
        "torch": torch_pipeline(options.run, about, answerer),
    }
    examples = load_examples(options.questions)
    questions = [example.question for example in examples[: TURN * options.turns]]
    for answer in systems.values():  # compiles, and fills caches
        for question in questions:
            answer(question)
    clock: dict[str, list[float]] = {name: [] for name in systems}
    work: dict[str, list[float]] = {name: [] for name in systems}
    for first in range(0, len(questions), TURN):
        for name, answer in systems.items():
            for question in questions[first : first + TURN]:
                started, spent = time.perf_counter(), time.process_time()
                answer(question)
                clock[name].append(time.perf_counter() - started)
                work[name].append(time.process_time() - spent)
    print("| | p50 ms | p95 ms | CPU ms |\n|---|---|---|---|")
    for name in systems:
        p50, p95 = 1000 * np.quantile(clock[name], [0.5, 0.95])
        print(f"| {name} | {p50:.0f} | {p95:.0f} | {1000 * np.mean(work[name]):.0f} |")
    p50, cpu = (np.median(x["torch"]) / np.median(x["ours"]) for x in (clock, work))
    print(f"torch / ours: {p50:.2f} of p50, {cpu:.2f} of CPU time")


if __name__ == "__main__":
    main()
