"""Where arrays live: processes, one mesh, one list of rules, and what simulated devices need.

Modules never name a mesh axis. A parameter's place follows from its path by ordered
``(regular expression, PartitionSpec)`` rules; the first that matches wins. Each device computes on
its own rows of the batch, with whole parameters; between two steps, parameters and optimiser state
lie whole on every device or in shares.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.errors import OrqaError

# Every axis splits the batch; parameters are split over the second and copied along the first.
DATA_AXIS, SHARD_AXIS = "data", "shard"
BATCH = PartitionSpec((DATA_AXIS, SHARD_AXIS))

Rules = Sequence[tuple[str, PartitionSpec]]

# The paths of Adam's moments end in those of their parameters, so the rules place both. A
# vocabulary seldom divides evenly, a hidden size does. The small rest is copied.
FULLY_SHARDED: Rules = (
    (r".*/embeddings/(word|position|segment)", PartitionSpec(None, SHARD_AXIS)),
    (r".*/kernel", PartitionSpec(SHARD_AXIS)),
    (r".*", PartitionSpec()),
)

_PROCESS_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# How long a process waits for the others to start, and for a sign of life from then on.
_START_SECONDS, _HEARTBEAT_SECONDS = 120, 30

logger = logging.getLogger(__name__)


def prepare_host() -> None:
    """Give XLA's CPU client more threads than there are simulated devices, before it starts.

    With fewer, a loop of collective steps or a host callback can wait for ever for a thread.
    Without simulated devices the threads would only get in each other's way. A value set by the
    user is kept.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("NPROC", "32")


def start_processes(environment: Mapping[str, str] = os.environ) -> None:
    """Prepares the host, and joins the other processes of this run where there are any.

    ``JAX_COORDINATOR_ADDRESS`` (host:port of process 0), ``JAX_NUM_PROCESSES`` (how many) and
    ``JAX_PROCESS_ID`` (which one this is) tell of them. ``JAX_NUM_PROCESSES=auto`` alone leaves it
    to jax, which knows TPU pods, Slurm, Open MPI and Kubernetes. Without these variables there is
    one process. To be called before anything touches a device.

    Raises:
      OrqaError: The variables are incomplete or wrong, or the others cannot be reached.
    """
    prepare_host()
    coordinator, count, number = (environment.get(name, "") for name in _PROCESS_VARIABLES)
    if not (coordinator or count or number):
        return
    told: dict[str, Any] = {}
    if not (count == "auto" and not coordinator and not number):
        if not (coordinator and count.isdecimal() and number.isdecimal()):
            raise OrqaError(
                f"The variables {', '.join(_PROCESS_VARIABLES)} are {coordinator!r}, {count!r} and "
                f"{number!r}; give host:port of process 0, how many processes there are, and the "
                "number of this one from 0, or JAX_NUM_PROCESSES=auto alone."
            )
        if int(number) >= int(count):
            raise OrqaError(f"JAX_PROCESS_ID is {number}, but there are only {count} processes.")
        told = {
            "coordinator_address": coordinator,
            "num_processes": int(count),
            "process_id": int(number),
        }
    try:
        jax.distributed.initialize(
            **told,
            initialization_timeout=_START_SECONDS,
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise OrqaError(
            f"The other processes of this run were not reached: {str(error).splitlines()[0]} "
            "(check the coordinator's address, and that all processes were started)."
        ) from error
    logger.info("Process %d of %d.", jax.process_index(), jax.process_count())


def make_mesh(devices: Sequence[jax.Device] | None = None, *, parameter_shards: int = 1) -> Mesh:
    """Returns the mesh of all devices (or those given), ``data`` by ``shard``.

    Args:
      devices: In the order of the rows of a batch.
      parameter_shards: Devices that share one copy of the parameters, the size of ``shard``.

    Raises:
      OrqaError: The devices do not divide into shares.
    """
    array = np.asarray(jax.devices() if devices is None else devices)
    if parameter_shards < 1 or array.size % parameter_shards:
        raise OrqaError(
            f"parameter_shards is {parameter_shards}; it has to divide the {array.size} devices."
        )
    return Mesh(array.reshape(-1, parameter_shards), (DATA_AXIS, SHARD_AXIS))


def accelerator_mesh() -> Mesh | None:
    """A mesh over all devices for searching on them, or None where the host is the faster place."""
    return None if jax.default_backend() == "cpu" else make_mesh()


def path_name(path: Sequence[Any]) -> str:
    """Joins the keys of a tree path with slashes: ``question_encoder/bert/layer_0/...``."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)


def tree_shardings(mesh: Mesh, tree: Any, rules: Rules = FULLY_SHARDED) -> Any:
    """Returns a tree of ``NamedSharding`` shaped like ``tree``, by the first rule that matches.

    Raises:
      OrqaError: No rule matches the path of a leaf, or its size does not divide.
    """

    def sharding(path: Sequence[Any], leaf: Any) -> NamedSharding:
        name = path_name(path)
        spec = next((spec for pattern, spec in rules if re.fullmatch(pattern, name)), None)
        if spec is None:
            raise OrqaError(f"No sharding rule matches the parameter {name}; add one that does.")
        for size, axis in zip(np.shape(leaf), spec, strict=False):
            if axis is not None and size % mesh.shape[axis]:
                raise OrqaError(
                    f"parameter_shards is {mesh.shape[axis]}, which does not divide the {size} "
                    f"rows or columns of {name}; choose a divisor of the encoder's hidden size."
                )
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(sharding, tree)


def gathered(mesh: Mesh, tree: Any) -> Any:
    """Inside jit: the arrays of ``tree`` whole on every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, everywhere), tree)


def place_batch(mesh: Mesh, batch: Any) -> Any:
    """Puts this process's rows of a batch on its devices; the result is the global batch."""
    sharding = NamedSharding(mesh, BATCH)
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch)


def jit_step(step: Any, mesh: Mesh, shardings: Any) -> Any:
    """Compiles ``step(state, ...) -> (state, metrics)``: the state is used up, and the next one
    lies as it did; every process can read the metrics.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, everywhere))


def fetch_tree(mesh: Mesh, tree: Any) -> Any:
    """The arrays of ``tree`` as numpy arrays, whole, in every process; all of them have to call."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    gathered = jax.jit(lambda tree: tree, out_shardings=everywhere)(tree)
    return jax.device_get(gathered)


def check_batch_size(mesh: Mesh, batch_size: int, chunk_size: int = 0) -> None:
    """Raises ``OrqaError`` unless the batch splits evenly over devices, and there into chunks."""
    if batch_size < 1 or batch_size % mesh.size:
        raise OrqaError(
            f"batch_size {batch_size} does not divide over {mesh.size} devices; "
            f"make it a multiple of {mesh.size}."
        )
    rows = batch_size // mesh.size
    if chunk_size and rows % min(chunk_size, rows):
        raise OrqaError(
            f"chunk_size {chunk_size} does not divide the {rows} rows of the batch on each device; "
            "choose a divisor, or 0."
        )
