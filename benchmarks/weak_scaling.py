"""Weak scaling of ICT on paper: what a chip sends in a step on 16, 64 and 256 chips, and a plot.

Needs libtpu (`pip install "jax[tpu]"`), no TPU:

    python -m benchmarks.weak_scaling [--chips 16 64 256] [--plot docs/weak_scaling.svg]

The step is that of experiments/configs/ict_pod.py with two BERT-base towers, 256 rows of the batch
on every chip of v5e, as `orqa plan` compiles it, but without dropout, which sends nothing, adds no
products, and takes the compiler twice as long. Twelve layers take the compiler half an hour and
more, so programs of one and of two layers are compiled, and the numbers of twelve follow: a layer
adds the same arithmetic and the same gradients each time. `efficiency` is the share of a step that
remains for arithmetic where nothing that is sent overlaps with it: arithmetic at the chip's peak
(the least favourable), and at the compiler's own estimate of the step.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

from matplotlib.figure import Figure

from experiments.configs import ict_pod
from orqa_jax.models.bert import BertConfig
from orqa_jax.train.mesh import make_mesh
from orqa_jax.train.plan import CHIPS, StepPlan, plan_ict, read_settings, topology_devices

KIND, ROWS, LAYERS = "v5e", 256, 12
BASE = BertConfig(
    vocab_size=30522,
    hidden_size=768,
    num_hidden_layers=LAYERS,
    num_attention_heads=12,
    intermediate_size=3072,
)


def planned(chips: int, layers: int) -> StepPlan:
    config, _ = read_settings(ict_pod.get_config().to_dict())
    side = math.isqrt(chips)
    return plan_ict(
        dataclasses.replace(config, batch_size=ROWS * chips, dropout=0.0),
        dataclasses.replace(BASE, num_hidden_layers=layers),
        make_mesh(topology_devices(f"{KIND}:{side}x{side}")),
    )


def plot(
    chips: list[int], sent: list[float], at_peak: list[float], estimated: list[float], path: Path
) -> None:
    figure = Figure(figsize=(8, 3), layout="constrained")
    bytes_axes, share_axes = figure.subplots(1, 2)
    bytes_axes.plot(chips, sent, "o-")
    bytes_axes.set(ylabel="GB sent by a chip in a step", ylim=(0, 1.1 * max(sent)))
    share_axes.plot(chips, at_peak, "o-", label="arithmetic at peak")
    share_axes.plot(chips, estimated, "s--", label="compiler's estimate")
    share_axes.set(ylabel="predicted efficiency", ylim=(0.9, 1.0))
    share_axes.legend(loc="lower left")
    for axes in (bytes_axes, share_axes):
        axes.set(xscale="log", xlabel=f"{KIND} chips, {ROWS} examples each")
        axes.set_xticks(chips, [str(count) for count in chips])
        axes.minorticks_off()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chips", nargs="+", type=int, default=[16, 64, 256])
    parser.add_argument("--plot", type=Path, default=Path("docs/weak_scaling.svg"))
    arguments = parser.parse_args()
    chip = CHIPS[KIND]
    sent, at_peak, estimated = [], [], []
    print("chips  batch  TFLOP  sent GB  sent s  peak s  compiler s  efficiency at peak, estimated")
    for chips in arguments.chips:
        one, two = planned(chips, 1), planned(chips, 2)

        def deep(name: str, one: StepPlan = one, two: StepPlan = two) -> float:
            first, second = getattr(one, name), getattr(two, name)
            return first + (LAYERS - 1) * (second - first)

        seconds = deep("bytes_sent") / chip.interconnect
        peak, estimate = deep("flops") / chip.flops, deep("seconds")
        sent.append(deep("bytes_sent") / 1e9)
        at_peak.append(peak / (peak + seconds))
        estimated.append(estimate / (estimate + seconds))
        print(
            f"{chips:5} {ROWS * chips:6} {deep('flops') / 1e12:6.1f} {sent[-1]:8.3f} "
            f"{seconds:7.4f} {peak:7.4f} {estimate:11.4f}  {at_peak[-1]:.4f} {estimated[-1]:.4f}",
            flush=True,
        )
    plot(arguments.chips, sent, at_peak, estimated, arguments.plot)


if __name__ == "__main__":
    main()
