"""Times our BERT against the torch `BertModel` (sdpa, float32) on the same cores, in one run.

Needs torch and transformers beside the package (they are no dependency of it):

    python -m benchmarks.bert_speed [--shapes 32x128 16x192] [--rounds 5]

Both have 6 layers, 384 wide, random weights, dropout off, and sequences padded by a tenth. Rounds
alternate between the two, and the fastest of each counts, so that what else runs on the machine
weighs on both alike. `ratio` is torch / ours: above 1 we are faster. CPU seconds are those of all
threads together; they say more than the clock on a busy machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers

from orqa_jax.models.bert import Bert, BertConfig

CONFIG = BertConfig(
    vocab_size=30522,
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=1536,
)


def fastest(functions: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """Seconds by the clock and CPU seconds of each function, the least of all rounds."""
    for function in functions.values():
        function()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            cpu, clock = time.process_time(), time.perf_counter()
            function()
            times[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    return {
        name: (min(clock for clock, _ in pairs), min(cpu for _, cpu in pairs))
        for name, pairs in times.items()
    }


def ours(token_ids_BL: np.ndarray, mask_BL: np.ndarray) -> dict[str, Callable[[], Any]]:
    bert = Bert(CONFIG)
    inputs = (jnp.asarray(token_ids_BL), jnp.asarray(mask_BL), jnp.zeros_like(token_ids_BL))
    params = jax.jit(bert.init)(jax.random.key(0), *inputs)
    forward = jax.jit(bert.apply)
    gradient = jax.jit(jax.grad(lambda p, *i: jnp.square(bert.apply(p, *i)[:, 0]).sum()))
    return {
        "forward": lambda: jax.block_until_ready(forward(params, *inputs)),
        "gradient": lambda: jax.block_until_ready(gradient(params, *inputs)),
    }


def theirs(token_ids_BL: np.ndarray, mask_BL: np.ndarray) -> dict[str, Callable[[], Any]]:
    bert = transformers.BertModel(
        transformers.BertConfig(**CONFIG.to_dict(), attn_implementation="sdpa"),
        add_pooling_layer=False,
    ).eval()
    token_ids, mask = torch.tensor(token_ids_BL), torch.tensor(mask_BL)

    def forward() -> None:
        with torch.no_grad():
            bert(token_ids, attention_mask=mask)

    def gradient() -> None:
        bert.zero_grad()
        hidden = bert(token_ids, attention_mask=mask).last_hidden_state
        hidden[:, 0].square().sum().backward()

    return {"forward": forward, "gradient": gradient}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=["32x128", "16x192", "8x288", "64x32"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("shape    pass      ours s (cpu)    torch s (cpu)   ratio (cpu)")
    for shape in arguments.shapes:
        batch, length = (int(size) for size in shape.split("x"))
        token_ids_BL = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (batch, length))
        token_ids_BL = token_ids_BL.astype(np.int32)
        mask_BL = np.broadcast_to(np.arange(length) < 0.9 * length, (batch, length))
        passes = ours(token_ids_BL, mask_BL), theirs(token_ids_BL, mask_BL)
        for name in ("forward", "gradient"):
            times = fastest({"ours": passes[0][name], "torch": passes[1][name]}, arguments.rounds)
            (clock, cpu), (torch_clock, torch_cpu) = times["ours"], times["torch"]
            print(
                f"{shape:8} {name:8} {clock:6.3f} ({cpu:6.3f}) "
                f"{torch_clock:6.3f} ({torch_cpu:6.3f})   "
                f"{torch_clock / clock:.2f} ({torch_cpu / cpu:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
