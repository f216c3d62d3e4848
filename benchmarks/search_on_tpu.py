"""Compiles the search of a step for TPUs that are not there, and says what the compiler expects.

    TPU_SKIP_MDS_QUERY=1 python -m benchmarks.search_on_tpu v5e:4x4 --precision float32

For 64 questions, the 5000 best of 13,353,718 blocks and the vectors of these, over all chips of the
topology. Needs libtpu, and no TPU. Nothing is run: times are the compiler's estimate.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orqa_jax.index.sharded import device_search


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("topology", nargs="?", default="v5e:4x4")
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--blocks", type=int, default=13_353_718)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--k", type=int, default=5000)
    options = parser.parse_args()
    devices = topologies.get_topology_desc(options.topology, "tpu").devices
    mesh = Mesh(np.array(devices), ("data",))
    rows = -(-options.blocks // mesh.size) * mesh.size
    for precision in options.precision:
        vectors = jax.ShapeDtypeStruct(
            (rows, 128),
            jnp.dtype(precision),
            sharding=NamedSharding(mesh, PartitionSpec("data")),
        )
        questions = jax.ShapeDtypeStruct(
            (options.batch, 128), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec())
        )
        program = functools.partial(search_and_gather, mesh, k=options.k, count=options.blocks)
        compiled = jax.jit(program).lower(vectors, questions).compile()
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
        assert memory is not None
        seconds = cost.get("optimal_seconds", -1.0)
        estimate = f"{1000 * seconds:.2f} ms" if seconds > 0 else "none (it could not say)"
        total = memory.argument_size_in_bytes + memory.output_size_in_bytes
        total += memory.temp_size_in_bytes
        print(
            f"{precision}: a chip holds {total / 2**30:.2f} GiB"
            f" ({memory.argument_size_in_bytes / 2**30:.2f} of vectors,"
            f" {memory.temp_size_in_bytes / 2**30:.2f} in between);"
            f" {cost['bytes accessed'] / 1e9:.2f} GB moved,"
            f" the compiler's estimate is {estimate}",
            flush=True,
        )


def search_and_gather(
    mesh: Mesh, vectors_NP: jax.Array, question_BP: jax.Array, *, k: int, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """ids, scores, and the vectors of the blocks found, each chip with those of its questions."""
    ids_BK, scores_BK = device_search(mesh, vectors_NP, question_BP, k=k, count=count)

    def gather(shard_MP: jax.Array, ids_BK: jax.Array) -> jax.Array:
        place_BK = ids_BK - jax.lax.axis_index("data") * len(shard_MP)
        here_BK = (place_BK >= 0) & (place_BK < len(shard_MP))
        found_BKP = shard_MP[jnp.where(here_BK, place_BK, 0)].astype(jnp.float32)
        found_BKP = jnp.where(here_BK[..., None], found_BKP, 0.0)
        return jax.lax.psum_scatter(found_BKP, "data", tiled=True)

    vectors_BKP = jax.shard_map(
        gather,
        mesh=mesh,
        in_specs=(PartitionSpec("data"), PartitionSpec()),
        out_specs=PartitionSpec("data"),
    )(vectors_NP, ids_BK)
    return ids_BK, scores_BK, vectors_BKP


if __name__ == "__main__":
    main()
