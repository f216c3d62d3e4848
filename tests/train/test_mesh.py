import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from orqa_jax.errors import OrqaError
from orqa_jax.train.mesh import check_batch_size, make_mesh, place_batch, tree_shardings


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


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(OrqaError, match="batch_size 0"):
        check_batch_size(make_mesh(), 0)
