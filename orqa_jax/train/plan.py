"""What a run will cost on devices that are not here: its very steps, compiled ahead of time.

Memory is what the compiler allots. Arithmetic is counted in the traced program, since the cost
analysis of the compiled one counts a loop once, whatever its length; the compiler's time is scaled
by the same ratio.
"""

import collections
import dataclasses
import functools
import importlib.util
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.errors import OrqaError
from orqa_jax.index.sharded import device_search
from orqa_jax.models.bert import BertConfig, with_dropout
from orqa_jax.models.reader import ReaderConfig, init_reader
from orqa_jax.models.retriever import init_dual_encoder, tower_names
from orqa_jax.models.weights import read_bert_config
from orqa_jax.train import finetune, ict
from orqa_jax.train.config import make_config
from orqa_jax.train.encode import encode_program, rows_of_batch
from orqa_jax.train.finetune import FinetuneConfig
from orqa_jax.train.ict import ICTConfig
from orqa_jax.train.mesh import BATCH, check_batch_size, jit_step, make_mesh, tree_shardings
from orqa_jax.train.retrieve import beam_shapes
from orqa_jax.train.state import initial_state
from orqa_jax.train.watch import PEAK_FLOPS, matmul_flops

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a chip has: bytes of memory, bfloat16 operations and bytes to its peers a second."""

    memory: float
    flops: float
    interconnect: float


# From the pages of the Cloud TPU documentation ("TPU v4", "TPU v5e", "TPU v5p", "TPU v6e").
CHIPS = {
    "v4": Chip(32 * 2**30, PEAK_FLOPS["TPU v4"], 300e9),
    "v5e": Chip(16 * 2**30, PEAK_FLOPS["TPU v5 lite"], 200e9),
    "v5p": Chip(95 * 2**30, PEAK_FLOPS["TPU v5p"], 600e9),
    "v6e": Chip(32 * 2**30, PEAK_FLOPS["TPU v6 lite"], 400e9),
}
# Share of a chip's memory that a step may take: the rest is for the input and fragmentation.
_USABLE = 0.9
# The compiler's full effort takes minutes a layer, for programs that are not run here.
_EFFORT = {"exec_time_optimization_effort": -1.0}
# Sentences of a block that ICT compares; encyclopaedic blocks of 288 wordpieces have up to so many.
_SENTENCES = 32


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """One program as each chip runs it: memory in bytes, and the costs of one call.

    ``calls`` is how often a run calls it. ``seconds`` is the compiler's estimate of a call; None
    where it makes none (CPU).
    """

    name: str
    calls: int
    parameters: int
    optimizer: int
    index: int
    inputs: int
    activations: int
    flops: float
    bytes_accessed: float
    collectives: tuple["Collective", ...]
    seconds: float | None

    def hours(self, chip: Chip) -> float:
        """Of all calls, by the compiler's estimate, or else as if nothing overlapped."""
        seconds = self.seconds
        if seconds is None:
            seconds = self.flops / chip.flops + self.bytes_sent / chip.interconnect
        return self.calls * seconds / 3600

    @property
    def memory(self) -> int:
        return self.parameters + self.optimizer + self.index + self.inputs + self.activations

    @property
    def bytes_sent(self) -> float:
        return sum(each.bytes_sent for each in self.collectives)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all of it, and the sums."""
        return dataclasses.asdict(self) | {"memory": self.memory, "bytes_sent": self.bytes_sent}


# --- Programs -------------------------------------------------------------------------------------


def print_plan(
    settings: Mapping[str, Any],
    topology: str,
    *,
    blocks: int,
    questions: int,
    find_chunk: bool = False,
    as_json: bool = False,
) -> None:
    """Prints what each step of a run takes on a chip of ``topology``, as it is compiled.

    Args:
      settings: Those of ICT under "ict", those of fine-tuning under "finetune"; without sections,
        those of ICT. Of the encoder only its ``config.json`` is read, of the corpus nothing.
      topology: As "v5e:4x8", or "host" for the devices of this machine.
      blocks: Size of the corpus, N.
      questions: Size of the training set of fine-tuning.
      find_chunk: Compile two more times, to tell the largest chunk_size that fits.
      as_json: Print a JSON object for each program, in bytes and seconds, instead of text.

    Raises:
      OrqaError: A setting is wrong, the topology unknown, or its compiler is not installed.
    """
    chip = CHIPS.get(topology.partition(":")[0])
    if find_chunk and chip is None:
        raise OrqaError(
            "The memory of this machine is not known; give --chunk with a TPU topology."
        )
    config, finetuning = read_settings(settings)
    bert_config = read_bert_config(Path(config.encoder) / "config.json")
    mesh = make_mesh(topology_devices(topology), parameter_shards=config.parameter_shards)
    check_batch_size(mesh, config.batch_size, config.chunk_size)
    size = -(-finetuning.batch_size // mesh.size) * mesh.size
    finetuning = dataclasses.replace(finetuning, batch_size=size)
    kind = mesh.devices.flat[0].device_kind
    if not as_json:
        print(f"On each of {mesh.size} devices of kind {kind}:", flush=True)
    for plan in (
        plan_ict(config, bert_config, mesh),
        plan_encoding(config, bert_config, mesh, blocks),
        plan_search(config, mesh, blocks, finetuning, questions),
        plan_finetuning(finetuning, config, bert_config, mesh, questions),
    ):
        if as_json:
            about = {"devices": mesh.size, "kind": kind, "hours": chip and plan.hours(chip)}
            print(json.dumps(plan.to_dict() | about), flush=True)
        else:
            print(format_plan(plan, chip), flush=True)
    if find_chunk and chip is not None:
        fitting = chunk_that_fits(config, bert_config, mesh, chip.memory)
        if as_json:
            print(json.dumps({"chunk_size": fitting}))
        else:
            print(f"Largest chunk_size that fits: {fitting or 'none'}")


def read_settings(settings: Mapping[str, Any]) -> tuple[ICTConfig, FinetuneConfig]:
    """The settings of both trainings; places may be left out, and one encoder serves for both."""
    sections = dict(settings) if "ict" in settings else {"ict": settings}
    config = make_config(ICTConfig, {"corpus": "", "out": "", **sections["ict"]})
    shared = {name: getattr(config, name) for name in ("encoder", "dtype", "parameter_shards")}
    places = dict.fromkeys(("corpus", "retriever", "index", "train", "out"), "")
    finetuning = make_config(FinetuneConfig, places | shared | dict(sections.get("finetune", {})))
    return config, finetuning


def chunk_that_fits(
    config: ICTConfig, bert_config: BertConfig, mesh: Mesh, memory: float
) -> int | None:
    """The largest chunk size whose ICT step takes no more than nine tenths of ``memory`` bytes.

    Memory grows in proportion to the chunk, so two small programs tell of all others. None where
    not even one row fits.
    """
    rows = config.batch_size // mesh.size
    divisors = [size for size in range(1, rows + 1) if rows % size == 0]
    tried = divisors[-3:-1] if len(divisors) > 2 else divisors
    taken = [
        plan_ict(dataclasses.replace(config, chunk_size=size), bert_config, mesh).memory
        for size in tried
    ]
    slope = (taken[-1] - taken[0]) / max(tried[-1] - tried[0], 1)
    fitting = [s for s in divisors if taken[0] + slope * (s - tried[0]) <= _USABLE * memory]
    return max(fitting, default=None)


def topology_devices(topology: str) -> Sequence[jax.Device]:
    """The devices of a TPU topology that need not be here, or of this machine for "host".

    Raises:
      OrqaError: It is unknown, or libtpu is not installed.
    """
    if topology == "host":
        return jax.devices()
    if topology.partition(":")[0] not in CHIPS:
        raise OrqaError(
            f'topology is "{topology}"; it can be "host", or {", ".join(CHIPS)} with a shape, as '
            '"v5e:4x8".'
        )
    if importlib.util.find_spec("libtpu") is None:
        raise OrqaError(
            f"The compiler for {topology} is in libtpu, which is not installed; "
            '`pip install "jax[tpu]"` gets the one that fits (on any Linux machine).'
        )
    # Nothing on this machine is asked for: neither the metadata of a cloud nor a TPU of its own.
    for name, value in {
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "none",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_MIN_LOG_LEVEL": "3",
        "TPU_STDERR_LOG_LEVEL": "3",
    }.items():
        os.environ.setdefault(name, value)
    # A host has 2x2 chips unless told otherwise, which a single chip is not made of.
    alone = set(topology.partition(":")[2].split("x")) == {"1"}
    bounds = {"chips_per_host_bounds": (1, 1, 1)} if alone else {}
    try:
        devices: Sequence[jax.Device] = topologies.get_topology_desc(
            topology, "tpu", **bounds
        ).devices
    except Exception as error:
        raise OrqaError(
            f"libtpu has no topology {topology} ({str(error).partition(chr(10))[0]})."
        ) from error
    return devices


def plan_ict(config: ICTConfig, bert_config: BertConfig, mesh: Mesh) -> StepPlan:
    """The step of pre-training, with all sequences as long as they can be."""
    # Shorter chunks take less of everything, and longer to compile.
    config = dataclasses.replace(config, chunk_lengths=1)
    model = ict.make_model(config, bert_config)
    optimizer = ict.make_ict_optimizer(config)
    state = _placed_state(
        mesh, lambda key: initial_state(init_dual_encoder(model.config, key), optimizer)
    )
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = ict.make_step(config, model, optimizer, mesh, shardings)
    batch = ict.batch_shapes(config, most_sentences=_SENTENCES)
    arguments = (state, _placed(batch, mesh, BATCH), _key(mesh))
    name = f"ict, {config.chunk_size or config.batch_size // mesh.size} rows at a time"
    return _compile(name, config.steps, step, arguments, mesh, state=state)


def plan_encoding(config: ICTConfig, bert_config: BertConfig, mesh: Mesh, blocks: int) -> StepPlan:
    """One batch of blocks of full length, as the encoding of the corpus makes it."""
    model = ict.make_model(config, bert_config)
    rows = rows_of_batch(config.block_length, mesh.size)
    tower = tower_names(model.config)[-1]
    shapes = jax.eval_shape(
        lambda key: {"params": {tower: init_dual_encoder(model.config, key)[tower]}},
        jax.random.key(0),
    )
    variables = _placed(shapes, mesh, PartitionSpec())
    inputs = ict.batch_shapes(dataclasses.replace(config, batch_size=rows), most_sentences=0)
    block = _placed(inputs["block"], mesh, BATCH)
    encode = encode_program(model, mesh)
    arguments = (variables, block["token_ids"], block["mask"], block["segment_ids"])
    name, calls = f"encoding, {rows} blocks at a time", -(-blocks // rows)
    return _compile(name, calls, encode, arguments, mesh, params=variables)


def plan_search(
    config: ICTConfig, mesh: Mesh, blocks: int, finetuning: FinetuneConfig, questions: int
) -> StepPlan:
    """Exact search for the early-update beam of one batch, over all blocks."""
    flat = make_mesh(list(mesh.devices.flat))
    per_shard = -(-blocks // flat.size)
    vectors = jax.ShapeDtypeStruct(
        (per_shard * flat.size, config.projection_size),
        jnp.float32,
        sharding=NamedSharding(flat, PartitionSpec(flat.axis_names[0])),
    )
    question_BP = jax.ShapeDtypeStruct(
        (finetuning.batch_size, config.projection_size),
        jnp.float32,
        sharding=NamedSharding(flat, PartitionSpec()),
    )
    k = min(finetuning.early_update_beam, per_shard)
    search = jax.jit(functools.partial(device_search, flat, k=k, count=blocks))
    name, calls = f"search, top {k} of {blocks}", finetune.total_steps(questions, finetuning)
    return _compile(name, calls, search, (vectors, question_BP), flat, index=vectors)


def plan_finetuning(
    config: FinetuneConfig,
    ict_config: ICTConfig,
    bert_config: BertConfig,
    mesh: Mesh,
    questions: int,
) -> StepPlan:
    """The step of fine-tuning by dense retrieval, the beam of which was retrieved before it."""
    retriever_config = dataclasses.replace(
        ict.make_model(ict_config, bert_config).config,
        bert=with_dropout(bert_config, config.dropout),
    )
    layers = config.reader_layers or bert_config.num_hidden_layers
    reader_bert = dataclasses.replace(retriever_config.bert, num_hidden_layers=layers)
    reader_config = ReaderConfig(reader_bert, config.span_hidden_size, config.max_span_wordpieces)
    models = finetune.make_models(config, retriever_config, reader_config)
    steps = finetune.total_steps(questions, config)
    optimizer = finetune.make_finetune_optimizer(config, steps)
    towers = tower_names(retriever_config)[: None if config.refresh_every else 1]

    def fresh(key: jax.Array) -> Any:
        both = init_dual_encoder(retriever_config, key)
        retriever = {tower: both[tower] for tower in towers}
        reader = init_reader(reader_config, key)
        return initial_state({"retriever": retriever, "reader": reader}, optimizer)

    state = _placed_state(mesh, fresh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    step = functools.partial(
        finetune.train_step,
        models=models,
        optimizer=optimizer,
        fetch=None,
        mesh=mesh,
        early_update=config.early_update,
    )
    beam = beam_shapes(
        finetune.beam_sizes(config, ict_config.block_length),
        config.batch_size,
        retriever_config.projection_size,
        devices=mesh.size,
    )
    batch = ict.batch_shapes(
        dataclasses.replace(ict_config, batch_size=config.batch_size), most_sentences=0
    )["question"] | {"rows": jax.ShapeDtypeStruct((config.batch_size,), np.int32)}
    arguments = (state, _placed(batch, mesh, BATCH), _placed(beam, mesh, BATCH), _key(mesh))
    return _compile(
        f"finetune, batch {config.batch_size}",
        steps,
        jit_step(step, mesh, shardings),
        arguments,
        mesh,
        state=state,
    )


def _key(mesh: Mesh) -> Any:
    return _placed(jax.eval_shape(lambda: jax.random.key(0)), mesh, PartitionSpec())


def _placed(shapes: Any, mesh: Mesh, spec: PartitionSpec) -> Any:
    return jax.tree.map(lambda leaf: leaf.update(sharding=NamedSharding(mesh, spec)), shapes)


def _placed_state(mesh: Mesh, make: Callable[[jax.Array], Any]) -> Any:
    shapes = jax.eval_shape(make, jax.random.key(0))
    return jax.tree.map(
        lambda leaf, sharding: leaf.update(sharding=sharding), shapes, tree_shardings(mesh, shapes)
    )


def _bytes_on_chip(tree: Any) -> int:
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _compile(
    name: str,
    calls: int,
    step: Any,
    arguments: Sequence[Any],
    mesh: Mesh,
    *,
    state: Any = None,
    params: Any = None,
    index: Any = None,
) -> StepPlan:
    logger.info("Compiling %s ...", name)
    traced = step.trace(*arguments)
    on_tpu = mesh.devices.flat[0].platform == "tpu"
    compiled = traced.lower().compile(compiler_options=_EFFORT if on_tpu else None)
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    parameters = _bytes_on_chip(params if state is None else state.params)
    optimizer = 0 if state is None else _bytes_on_chip(state.optimizer_state)
    of_index = _bytes_on_chip(index)
    flops = matmul_flops(traced.jaxpr) / mesh.size
    # Both count the products; what is left out of loops is the same share of all work.
    scale = max(flops / max(cost["flops"], 1.0), 1.0)
    seconds = cost.get("optimal_seconds", -1.0)
    return StepPlan(
        name,
        calls,
        parameters=parameters,
        optimizer=optimizer,
        index=of_index,
        inputs=memory.argument_size_in_bytes - parameters - optimizer - of_index,
        activations=memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes,
        flops=flops,
        bytes_accessed=scale * cost["bytes accessed"],
        collectives=tuple(find_collectives(compiled.as_text(), mesh.size)),
        seconds=scale * seconds if seconds > 0 else None,
    )


# --- Exchanges of a program -----------------------------------------------------------------------


_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8}
_COLLECTIVE = re.compile(
    r"= (?P<result>.+?) "
    r"(?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)"
    r"(?P<start>-start)?\("
)
_ARRAY = re.compile(r"(?P<type>[a-z]+\d*)\[(?P<shape>[\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices in a compiled program.

    Attributes:
      kind: As XLA names it.
      shapes: Of its results on each device.
      bytes_sent: By each device in a ring, the way that sends least.
    """

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    bytes_sent: float


def find_collectives(program: str, devices: int) -> Iterator[Collective]:
    """The exchanges that stand in the text of a compiled program, in its order."""
    ring = (devices - 1) / devices
    for line in program.splitlines():
        found = _COLLECTIVE.search(line)
        if found is None:
            continue
        arrays = [
            (array["type"], tuple(int(size) for size in array["shape"].split(",") if size))
            for array in _ARRAY.finditer(found["result"])
        ]
        kind = found["kind"]
        if found["start"] and kind in ("all-gather", "collective-permute"):
            arrays = arrays[len(arrays) // 2 :]  # the operands stand first
        size = sum(_BYTES.get(kind_, 4) * math.prod(shape) for kind_, shape in arrays)
        times = {"all-reduce": 2 * ring, "reduce-scatter": devices - 1, "collective-permute": 1}
        yield Collective(kind, tuple(shape for _, shape in arrays), size * times.get(kind, ring))


# --- The report -----------------------------------------------------------------------------------


def format_plan(plan: StepPlan, chip: Chip | None) -> str:
    """A few lines for people."""

    def gigabytes(value: float) -> str:
        return f"{value / 1e9:.2f} GB"

    of_chip, at_peak, on_the_way, whole_run = "", "", "", ""
    if chip is not None:
        fits = "" if plan.memory <= _USABLE * chip.memory else ", DOES NOT FIT"
        of_chip = f" of {gigabytes(chip.memory)}{fits}"
        at_peak = f", {plan.flops / chip.flops:.4f} s at peak"
        on_the_way = f", {plan.bytes_sent / chip.interconnect:.4f} s"
        whole_run = f"\n  the whole run   {plan.hours(chip):.2f} h, {plan.calls} calls"
    estimate = "" if plan.seconds is None else f"\n  compiler says   {plan.seconds:.4f} s a call"
    kinds = collections.Counter(each.kind for each in plan.collectives)
    exchanges = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    return (
        f"{plan.name}\n"
        f"  memory          {gigabytes(plan.memory)}{of_chip}\n"
        f"    parameters    {gigabytes(plan.parameters)}\n"
        f"    optimiser     {gigabytes(plan.optimizer)}\n"
        f"    index         {gigabytes(plan.index)}\n"
        f"    batch         {gigabytes(plan.inputs)}\n"
        f"    activations   {gigabytes(plan.activations)}\n"
        f"  arithmetic      {plan.flops / 1e12:.3f} TFLOP{at_peak}\n"
        f"  memory traffic  {gigabytes(plan.bytes_accessed)}\n"
        f"  sent to peers   {gigabytes(plan.bytes_sent)}{on_the_way} ({exchanges})"
        f"{estimate}{whole_run}"
    )
