"""Times encoding and one ICT step against sentence-transformers on torch, in one run.

Needs torch, sentence-transformers and transformers beside the package (they are no dependency):

    python -m benchmarks.ict_speed ENCODER [--batches 64 512] [--rounds 3] [--systems ours torch]

Both have the weights of ENCODER (a BertModel folder, 6 layers in the docs), mean pooling, float32
parameters, dropout off, AdamW, and the same 128-wordpiece sequences, of which a tenth is padding.
Encoding is `SentenceTransformer.forward` under `no_grad` and our `encode_program`. Training at the
first batch size is against MultipleNegativesRankingLoss, at the others, in chunks of 64, against
CachedMultipleNegativesRankingLoss. Each system has a process of its own; rounds alternate between
all, and the fastest of each counts, so that what else runs on the machine weighs on all alike.
`ratio` is theirs / ours (the first of the systems): above 1 we are faster. With
`GLIBC_TUNABLES=glibc.malloc.hugetlb=1` both get their memory in huge pages.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from sentence_transformers import SentenceTransformer, losses
from sentence_transformers.models import Pooling, Transformer

from orqa_jax.models.retriever import init_dual_encoder
from orqa_jax.models.weights import load_bert
from orqa_jax.train import ict
from orqa_jax.train.encode import encode_program
from orqa_jax.train.mesh import make_mesh, tree_shardings
from orqa_jax.train.state import initial_state

LENGTH, CHUNK = 128, 64


def sequences(count: int, vocabulary: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    token_ids_BL = rng.integers(1000, vocabulary, (count, LENGTH)).astype(np.int32)
    mask_BL = np.arange(LENGTH) < rng.integers(0.8 * LENGTH, LENGTH + 1, (count, 1))
    return {"token_ids": token_ids_BL, "mask": mask_BL, "segment_ids": np.zeros_like(token_ids_BL)}


def ours(encoder: Path, batch_size: int, dtype: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    bert_config, bert_params = load_bert(encoder)
    config = ict.ICTConfig(
        *("", str(encoder), ""),
        batch_size=batch_size,
        chunk_size=CHUNK if batch_size > CHUNK else 0,
        question_length=LENGTH,
        block_length=LENGTH,
        pooling="mean",
        shared_towers=True,
        dropout=0.0,
        dtype=dtype,
    )
    model, optimizer = ict.make_model(config, bert_config), ict.make_ict_optimizer(config)
    mesh = make_mesh()
    params = init_dual_encoder(model.config, jax.random.key(0), bert_params)
    inputs = jax.tree.map(jnp.asarray, sequences(batch_size, bert_config.vocab_size))
    encode = encode_program(model, mesh)
    arrays = [inputs[name] for name in ("token_ids", "mask", "segment_ids")]
    if batch_size <= CHUNK:
        yield "encode", lambda: jax.block_until_ready(encode({"params": params}, *arrays))
    state = initial_state(jax.tree.map(jnp.copy, params), optimizer)
    step = ict.make_step(config, model, optimizer, mesh, tree_shardings(mesh, state))
    batch = {
        "target": jnp.arange(batch_size),
        "masked": jnp.ones(batch_size, bool),
        "question_hash": jnp.arange(batch_size),
        "sentence_hashes": jnp.arange(batch_size)[:, None],
        "question": inputs,
        "block": inputs,
    }
    held = [state]

    def train() -> None:
        held[0], metrics = step(held[0], batch, jax.random.key(0))
        jax.block_until_ready((held[0], metrics))

    yield "train", train


def theirs(
    encoder: Path, batch_size: int, autocast: bool
) -> Iterator[tuple[str, Callable[[], Any]]]:
    transformer = Transformer(str(encoder))
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_word_embedding_dimension(), "mean")],
        device="cpu",
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    arrays = sequences(batch_size, transformer.auto_model.config.vocab_size)
    features = {
        "input_ids": torch.tensor(arrays["token_ids"]),
        "attention_mask": torch.tensor(arrays["mask"].astype(np.int64)),
    }

    def precision() -> Any:
        return torch.autocast("cpu", torch.bfloat16, enabled=autocast)

    def encode() -> None:
        with torch.no_grad(), precision():
            model(dict(features))

    if batch_size <= CHUNK:
        yield "encode", encode
        loss: Any = losses.MultipleNegativesRankingLoss(model)
    else:
        loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=CHUNK)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model.train()

    def train() -> None:
        optimizer.zero_grad()
        with precision():
            value = loss([dict(features), dict(features)], None)
        value.backward()
        optimizer.step()

    yield "train", train


SYSTEMS = {
    "ours": partial(ours, dtype="float32"),
    "ours-bf16": partial(ours, dtype="bfloat16"),
    "torch": partial(theirs, autocast=False),
    "torch-bf16": partial(theirs, autocast=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("encoder", type=Path)
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=["ours", "torch", "torch-bf16"],
        help="what ratios are to comes first",
    )
    arguments = parser.parse_args()
    print("batch what    system           seconds (cpu)   rows/s   ratio to the first (cpu)")
    for batch_size in arguments.batches:
        workers = {
            system: Worker(system, arguments.encoder, batch_size) for system in arguments.systems
        }
        first = arguments.systems[0]
        for what in ("encode", "train") if batch_size <= CHUNK else ("train",):
            times: dict[str, list[tuple[float, float]]] = {system: [] for system in workers}
            for round_number in range(arguments.rounds + 1):
                for system, worker in workers.items():
                    spent = worker.time(what)
                    if round_number:  # the first one compiles
                        times[system].append(spent)
            best = {s: [min(column) for column in zip(*t, strict=True)] for s, t in times.items()}
            for system, (clock, cpu) in best.items():
                ratio, cpu_ratio = clock / best[first][0], cpu / best[first][1]
                print(
                    f"{batch_size:5} {what:7} {system:14} {clock:8.2f} ({cpu:6.2f}) "
                    f"{batch_size / clock:8.1f}   {ratio:.2f} ({cpu_ratio:.2f})",
                    flush=True,
                )
        for worker in workers.values():
            worker.close()


class Worker:
    """One system in a process of its own, so that neither's threads and memory are the other's."""

    def __init__(self, system: str, encoder: Path, batch_size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs, system, encoder, batch_size))
        self._process.start()

    def time(self, what: str) -> tuple[float, float]:
        """Seconds of one run, by the clock and of the CPU."""
        self._pipe.send(what)
        seconds: tuple[float, float] = self._pipe.recv()
        return seconds

    def close(self) -> None:
        self._pipe.send("")
        self._process.join()


def work(pipe: Connection, system: str, encoder: Path, batch_size: int) -> None:
    functions = dict(SYSTEMS[system](encoder, batch_size))
    while what := pipe.recv():
        clock, cpu = time.perf_counter(), time.process_time()
        functions[what]()
        pipe.send((time.perf_counter() - clock, time.process_time() - cpu))


if __name__ == "__main__":
    main()
