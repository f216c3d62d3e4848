"""What a run says about itself: its devices and memory, the share of their peak, a trace."""

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh

Item = TypeVar("Item")

logger = logging.getLogger(__name__)

# Dense bfloat16 operations a second of a device, by its kind in jax. Sources: the pages "TPU v4",
# "TPU v5e", "TPU v5p" and "TPU v6e" of the Cloud TPU documentation, and NVIDIA's data sheets,
# halved where they count with sparsity.
PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
}

_GOOGLE_PCI_VENDOR = "0x1ae0"


class StepCosts:
    """Memory and arithmetic of a step, from its program: ``trace`` is that of the jitted step.

    The first call of ``seconds_at_peak`` writes the first line of a run's log: kind and number of
    devices, mesh, global batch, and the memory that the compiler gives the step on each device.
    Compiling for it costs nothing, as jax takes the same program when the step is called.
    """

    def __init__(self, name: str, mesh: Mesh, batch_size: int, trace: Any) -> None:
        self._name, self._mesh, self._batch_size = name, mesh, batch_size
        self._trace = trace
        self._peak = PEAK_FLOPS.get(mesh.devices.flat[0].device_kind)
        self._seconds: dict[Any, float | None] = {}

    def seconds_at_peak(self, *arguments: Any) -> float | None:
        """Time that the matrix products of the step take at the devices' bfloat16 peak.

        None where the peak of the devices is not known. Batches of another shape are another
        program, whose products are counted when the first of them comes.
        """
        shapes = tuple(x.shape for x in jax.tree.leaves(arguments))
        if shapes not in self._seconds:
            traced = self._trace(*arguments)
            if not self._seconds:
                compiled = traced.lower().compile()
                logger.info("%s", self._description(compiled.memory_analysis()))
                warning = unused_accelerator(jax.default_backend())
                if warning:
                    logger.warning("%s", warning)
            self._seconds[shapes] = None
            if self._peak is not None:
                flops = matmul_flops(traced.jaxpr)
                self._seconds[shapes] = flops / self._mesh.size / self._peak
        return self._seconds[shapes]

    def _description(self, memory: Any) -> str:
        device = self._mesh.local_devices[0]
        axes = " x ".join(f"{name} {size}" for name, size in self._mesh.shape.items())
        needed = (
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            - memory.alias_size_in_bytes
            + memory.temp_size_in_bytes
            + memory.generated_code_size_in_bytes
        )
        limit = (device.memory_stats() or {}).get("bytes_limit")
        of_limit = f" of {limit / 1e9:.1f}" if limit else ""
        return (
            f"{self._name}: devices {self._mesh.size} x {device.device_kind}, "
            f"processes {jax.process_count()}, mesh {axes}, global batch {self._batch_size}, "
            f"memory of a step about {needed / 1e9:.2f}{of_limit} GB a device."
        )


def matmul_flops(jaxpr: Jaxpr | ClosedJaxpr) -> float:
    """Floating point operations of all matrix products of a program, over all devices.

    A product of [M, K] and [K, N] counts 2MKN. What is computed again in the backward pass counts
    again, and a scan counts as often as it runs its body, where the cost analysis of the compiled
    program counts a loop once. Fused attention kernels show no products and count nothing; a
    ``while`` loop of unknown length counts once.
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    total = 0.0
    for equation in jaxpr.eqns:
        parameters = equation.params
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            left: Any = equation.invars[0].aval
            product: Any = equation.outvars[0].aval
            sums = math.prod(left.shape[axis] for axis in contracted)
            total += 2.0 * sums * math.prod(product.shape)
            continue
        inner = [matmul_flops(part) for value in parameters.values() for part in _jaxprs(value)]
        if equation.primitive.name == "cond":
            total += max(inner)
        elif equation.primitive.name == "shard_map":
            total += parameters["mesh"].size * sum(inner)
        else:
            total += parameters.get("length", 1) * sum(inner)
    return total


def _jaxprs(value: Any) -> list[Jaxpr | ClosedJaxpr]:
    if isinstance(value, Jaxpr | ClosedJaxpr):
        return [value]
    if isinstance(value, tuple | list):
        return [part for item in value for part in _jaxprs(item)]
    return []


def unused_accelerator(
    backend: str, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> str | None:
    """A warning where jax computes on the CPU of a machine with an accelerator, or None.

    Args:
      backend: ``jax.default_backend()``.
      root: Where ``dev`` and ``sys`` lie.
      environment: With ``JAX_PLATFORMS=cpu`` the CPU is meant, and nothing is said.
    """
    if backend != "cpu" or environment.get("JAX_PLATFORMS") == "cpu":
        return None
    gpus = sorted((root / "dev").glob("nvidia[0-9]*"))
    tpus = sorted((root / "dev").glob("accel*")) + [
        vendor.parent
        for vendor in sorted((root / "sys" / "bus" / "pci" / "devices").glob("*/vendor"))
        if vendor.read_text().strip() == _GOOGLE_PCI_VENDOR
    ]
    variables = [n for n in ("TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE") if n in environment]
    for found, extra in ((gpus, "cuda"), ([*tpus, *variables], "tpu")):
        if found:
            return (
                f"Training on the CPU, though {found[0]} tells of an accelerator: install "
                f"orqa_jax[{extra}] to use it, or set JAX_PLATFORMS=cpu if the CPU is meant."
            )
    return None


def profiled(
    items: Iterable[Item], folder: str, *, first: int = 3, count: int = 5
) -> Iterator[Item]:
    """Yields ``items``, and traces what is done with ``count`` of them from number ``first`` on.

    The first ones compile, so they are left out. The trace is written to ``folder`` in the format
    of TensorBoard's profile plugin (xprof) and of Perfetto; "" for none.
    """
    tracing, number = False, -1
    try:
        for number, item in enumerate(items):
            if folder and number == first:
                jax.profiler.start_trace(folder)
                tracing = True
            if tracing and number == first + count:
                jax.profiler.stop_trace()
                tracing = False
                logger.info("A trace of %d steps is in %s.", count, folder)
            yield item
    finally:
        if tracing:
            jax.profiler.stop_trace()
        elif folder and number < first:
            logger.warning(
                "The run ended before its step %d, so %s got no trace.", first + 1, folder
            )
