"""Times a step of ICT on real blocks with chunks cut to few lengths, against full padding.

    python -m benchmarks.chunk_lengths CORPUS ENCODER [--batch 32] [--chunk 8] [--steps 3]

CORPUS is a block store made with the tokenizer of ENCODER. Batches are those of `orqa ict` with
blocks of 288 and questions of 64 wordpieces, dropout off, float32. Each batch is trained on by all
variants in turn, and the mean of each counts. `ratio` is to chunks at full length, in the same run:
below 1 is faster. `loss` is that of the first batch, which must not differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import jax
import numpy as np

from orqa_jax.models.retriever import init_dual_encoder
from orqa_jax.models.weights import load_bert
from orqa_jax.train import ict
from orqa_jax.train.mesh import make_mesh, place_batch, prepare_host, tree_shardings
from orqa_jax.train.state import initial_state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    prepare_host()
    whole = ict.ICTConfig(
        str(arguments.corpus),
        str(arguments.encoder),
        "",
        batch_size=arguments.batch,
        pooling="mean",
        dropout=0.0,
    )
    variants = {
        "chunks, full length": dataclasses.replace(
            whole, chunk_size=arguments.chunk, chunk_lengths=1
        ),
        "chunks, 3 lengths": dataclasses.replace(whole, chunk_size=arguments.chunk),
        "no chunks": whole,
    }
    bert_config, bert_params = load_bert(arguments.encoder)
    mesh = make_mesh()
    steps, states, losses = {}, {}, {}
    for name, config in variants.items():
        model, optimizer = ict.make_model(config, bert_config), ict.make_ict_optimizer(config)
        params = init_dual_encoder(model.config, jax.random.key(0), bert_params)
        state = initial_state(params, optimizer)
        shardings = tree_shardings(mesh, state)
        states[name] = jax.device_put(state, shardings)
        steps[name] = ict.make_step(config, model, optimizer, mesh, shardings)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for number in range(arguments.steps + 1):
        # The first batch comes twice: it compiles.
        batch = place_batch(mesh, ict.step_batch(whole, 1, 0, max(number - 1, 0)))
        for name, step in steps.items():
            clock, cpu = time.perf_counter(), time.process_time()
            states[name], metrics = step(states[name], batch, jax.random.key(0))
            jax.block_until_ready((states[name], metrics))
            times = time.perf_counter() - clock, time.process_time() - cpu
            if number:
                spent[name].append(times)
                print(f"{name:20} {times[0]:.2f} ({times[1]:.2f})", flush=True)
            else:
                losses[name] = float(metrics["loss"][0] / metrics["loss"][1])
                print(f"{name:20} compiled in {times[0]:.0f} s", flush=True)
    mean = {name: np.mean(times, axis=0) for name, times in spent.items()}
    base = mean["chunks, full length"]
    print("                     s a step (cpu)   ratio (cpu)   loss")
    for name, (clock, cpu) in mean.items():
        print(
            f"{name:20} {clock:7.2f} ({cpu:6.2f})   {clock / base[0]:.2f} ({cpu / base[1]:.2f})"
            f"   {losses[name]:.6f}"
        )


if __name__ == "__main__":
    main()
