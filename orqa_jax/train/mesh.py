"""Where arrays live: one mesh, one list of rules, and what simulated devices need of the host.

Modules never name a mesh axis. A parameter's place follows from its path by ordered
``(regular expression, PartitionSpec)`` rules; the first that matches wins.
"""

import os
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.errors import OrqaError

DATA_AXIS = "data"

Rules = Sequence[tuple[str, PartitionSpec]]

# Data parallelism: every device holds all parameters and its own rows of the batch.
REPLICATED: Rules = ((r".*", PartitionSpec()),)


def prepare_host() -> None:
    """Give XLA's CPU client more threads than there are simulated devices, before it starts.

    With fewer, a loop of collective steps or a host callback can wait for ever for a thread.
    Without simulated devices the threads would only get in each other's way. A value set by the
    user is kept.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        os.environ.setdefault("NPROC", "32")


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns a one-dimensional mesh over all devices (or those given), named by ``DATA_AXIS``."""
    return Mesh(np.asarray(jax.devices() if devices is None else devices), (DATA_AXIS,))


def accelerator_mesh() -> Mesh | None:
    """A mesh over all devices for searching on them, or None where the host is the faster place."""
    return None if jax.default_backend() == "cpu" else make_mesh()


def path_name(path: Sequence[Any]) -> str:
    """Joins the keys of a tree path with slashes: ``question_encoder/bert/layer_0/...``."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in path)


def tree_shardings(mesh: Mesh, tree: Any, rules: Rules = REPLICATED) -> Any:
    """Returns a tree of ``NamedSharding`` shaped like ``tree``, by the first rule that matches.

    Raises:
      OrqaError: No rule matches the path of a leaf.
    """

    def sharding(path: Sequence[Any], _: Any) -> NamedSharding:
        name = path_name(path)
        for pattern, spec in rules:
            if re.fullmatch(pattern, name):
                return NamedSharding(mesh, spec)
        raise OrqaError(f"No sharding rule matches the parameter {name}; add one that does.")

    return jax.tree_util.tree_map_with_path(sharding, tree)


def place_batch(mesh: Mesh, batch: Any) -> Any:
    """Puts this process's rows of a batch on its devices; the result is the global batch."""
    sharding = NamedSharding(mesh, PartitionSpec(DATA_AXIS))
    return jax.tree.map(lambda x: jax.make_array_from_process_local_data(sharding, x), batch)


def check_batch_size(mesh: Mesh, batch_size: int) -> None:
    """Raises ``OrqaError`` unless the batch splits evenly over the devices of the mesh."""
    if batch_size < 1 or batch_size % mesh.size:
        raise OrqaError(
            f"batch_size {batch_size} does not divide over {mesh.size} devices; "
            f"make it a multiple of {mesh.size}."
        )
