import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from orqa_jax.errors import OrqaError
from orqa_jax.train.mesh import check_batch_size, fetch_tree, make_mesh, place_batch, tree_shardings


def test_a_batch_is_split_over_all_devices():
    mesh = make_mesh()
    assert mesh.size == len(jax.devices()) == 8
    batch = {"a": np.arange(16), "b": np.arange(32.0).reshape(8, 4)}
    placed = place_batch(mesh, batch)
    assert [shard.data.tolist() for shard in placed["a"].addressable_shards] == [
        [2 * device, 2 * device + 1] for device in range(8)
    ]
    np.testing.assert_array_equal(placed["b"], batch["b"])


def test_the_first_rule_that_matches_wins():
    mesh = make_mesh()
    tree = {"tower": {"kernel": 1, "bias": 2}}
    rules = [(".*/kernel", PartitionSpec("data")), (".*", PartitionSpec())]
    found = tree_shardings(mesh, tree, rules)
    assert found["tower"]["kernel"].spec == PartitionSpec("data")
    assert found["tower"]["bias"].spec == PartitionSpec()


def test_a_parameter_without_a_rule_is_named():
    with pytest.raises(OrqaError, match="tower/bias"):
        tree_shardings(make_mesh(), {"tower": {"bias": 1}}, [("tower/kernel", PartitionSpec())])


def test_batch_sizes():
    check_batch_size(make_mesh(), 24)
    with pytest.raises(OrqaError, match=r"batch_size 12 .* multiple of 8"):
        check_batch_size(make_mesh(), 12)
    check_batch_size(make_mesh(), 48, chunk_size=3)
    check_batch_size(make_mesh(), 48, chunk_size=100)
    with pytest.raises(OrqaError, match=r"chunk_size 4 .* 6 rows"):
        check_batch_size(make_mesh(), 48, chunk_size=4)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(OrqaError, match="batch_size 0"):
        check_batch_size(make_mesh(), 0)


def test_parameters_lie_in_shares_and_the_batch_on_all_devices():
    mesh = make_mesh(parameter_shards=4)
    tree = {"mu": {"bert": {"embeddings": {"word": np.zeros((7, 8)), "norm": np.zeros(8)}}}}
    tree["mu"]["kernel"] = np.zeros((12, 5))
    found = tree_shardings(mesh, tree)
    shapes = jax.tree.map(lambda s, x: s.shard_shape(x.shape), found, tree)
    assert shapes["mu"] == {
        "bert": {"embeddings": {"word": (7, 2), "norm": (8,)}},
        "kernel": (3, 5),
    }
    rows = place_batch(mesh, np.arange(16))
    assert [shard.data.tolist() for shard in rows.addressable_shards] == [
        [2 * device, 2 * device + 1] for device in range(8)
    ]
    placed = jax.device_put(tree, found)
    for shape, whole in zip(
        jax.tree.leaves(tree), jax.tree.leaves(fetch_tree(mesh, placed)), strict=True
    ):
        np.testing.assert_array_equal(whole, shape)


def test_shares_that_do_not_come_out_even_are_refused():
    with pytest.raises(OrqaError, match=r"parameter_shards is 3.* 8 devices"):
        make_mesh(parameter_shards=3)
    with pytest.raises(OrqaError, match=r"parameter_shards is 4.* 6 .*tower/kernel"):
        tree_shardings(make_mesh(parameter_shards=4), {"tower": {"kernel": np.zeros((6, 8))}})
