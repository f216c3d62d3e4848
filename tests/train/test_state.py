import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_world import equal_trees

from orqa_jax.train.mesh import path_name
from orqa_jax.train.state import (
    apply_gradients,
    frozen_layer_patterns,
    initial_state,
    linear_schedule,
    make_optimizer,
)

# AdamW as BERT's released optimiser has it.
B1, B2, EPS = 0.9, 0.999, 1e-6
SHAPES = {
    "tower/bert/embeddings/word": (3, 2),
    "tower/bert/layer_0/output/kernel": (2, 2),
    "tower/bert/layer_1/output/kernel": (2, 3),
    "tower/bert/layer_1/output/bias": (3,),
    "tower/bert/layer_1/output_norm/scale": (3,),
    "tower/bert/layer_10/output/kernel": (2, 2),
    "tower/projection/kernel": (3, 2),
    "tower/projection/bias": (2,),
}


def tree(values):
    made = {}
    for name, value in values.items():
        *folders, leaf = name.split("/")
        inner = made
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[leaf] = jnp.asarray(value)
    return made


def flat(params):
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {path_name(path): np.asarray(value) for path, value in leaves}


def numbers(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {n: (scale * rng.standard_normal(s)).astype(np.float32) for n, s in SHAPES.items()}


def adamw_oracle(params, gradients_of_steps, rate, decay, frozen, faster, factor):
    """AdamW by its definition (Loshchilov and Hutter 2019, algorithm 2), in float64."""
    params = {name: value.astype(np.float64) for name, value in params.items()}
    first = {name: np.zeros_like(value) for name, value in params.items()}
    second = {name: np.zeros_like(value) for name, value in params.items()}
    for step, gradients in enumerate(gradients_of_steps):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients.values()))
        for name in params:
            if name in frozen:
                continue
            gradient = gradients[name] / max(norm, 1.0)
            first[name] = B1 * first[name] + (1 - B1) * gradient
            second[name] = B2 * second[name] + (1 - B2) * gradient**2
            unbiased = first[name] / (1 - B1 ** (step + 1))
            spread = np.sqrt(second[name] / (1 - B2 ** (step + 1)))
            update = unbiased / (spread + EPS)
            if name.rsplit("/")[-1] not in ("bias", "scale"):
                update = update + decay * params[name]
            speed = factor if name in faster else 1.0
            params[name] = params[name] - speed * rate(step) * update
    return params


@pytest.mark.parametrize(("step", "rate"), [(0, 0.0), (2, 0.1), (4, 0.2), (9, 0.1), (14, 0.0)])
def test_the_schedule_rises_and_falls(step, rate):
    assert float(linear_schedule(0.2, 4, 14)(step)) == pytest.approx(rate, abs=1e-7)


def test_a_schedule_without_warm_up_starts_at_the_peak():
    schedule = linear_schedule(0.2, 0, 10)
    assert [float(schedule(step)) for step in (0, 5, 10)] == pytest.approx([0.2, 0.1, 0.0])


def test_a_schedule_of_warm_up_alone_stays_finite():
    schedule = linear_schedule(0.2, 4, 4)
    assert [float(schedule(step)) for step in (0, 2, 4)] == pytest.approx([0.0, 0.1, 0.2])


@pytest.mark.parametrize("scale", [0.01, 10.0])
def test_updates_are_those_of_adamw(scale):
    """With gradients below and above the clipping norm; decay, frozen and faster parts included."""
    start = numbers(0)
    gradients = [numbers(seed, scale) for seed in (1, 2, 3)]
    schedule = linear_schedule(0.05, 1, 4)
    optimizer = make_optimizer(
        schedule,
        weight_decay=0.3,
        frozen=frozen_layer_patterns("tower", 1),
        faster=["tower/projection/.*"],
        faster_factor=7.0,
    )
    state = initial_state(tree(start), optimizer)
    step = jax.jit(lambda state, gradients: apply_gradients(state, gradients, optimizer))
    for of_step in gradients:
        state = step(state, tree(of_step))
    frozen = {"tower/bert/embeddings/word", "tower/bert/layer_0/output/kernel"}
    expected = adamw_oracle(
        start,
        gradients,
        lambda step: float(schedule(step)),
        0.3,
        frozen,
        {"tower/projection/kernel", "tower/projection/bias"},
        7.0,
    )
    found = flat(state.params)
    assert int(state.step) == 3
    for name in SHAPES:
        if name in frozen:
            assert found[name].tobytes() == start[name].tobytes()
        else:
            assert np.abs(found[name] - start[name]).max() > 1e-4
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_frozen_parameters_have_no_optimizer_state():
    optimizer = make_optimizer(lambda step: 1.0, frozen=["tower/bert/.*"])
    state = initial_state(tree(numbers(0)), optimizer)
    held = sum(x.size for x in jax.tree.leaves(state.optimizer_state) if x.ndim)
    assert held == 2 * (3 * 2 + 2)  # two moments of the projection


def test_no_gradient_and_no_decay_is_no_change():
    start = tree(numbers(0))
    optimizer = make_optimizer(lambda step: 1.0, weight_decay=0.0)
    state = initial_state(start, optimizer)
    state = apply_gradients(state, jax.tree.map(jnp.zeros_like, start), optimizer)
    equal_trees(state.params, start)


def test_frozen_layer_patterns_name_the_lower_layers_alone():
    patterns = frozen_layer_patterns("tower", 2)
    frozen = {n for n in SHAPES if any(re.fullmatch(pattern, n) for pattern in patterns)}
    assert frozen == {n for n in SHAPES if re.search("embeddings|layer_0|layer_1/", n)}
    assert frozen_layer_patterns("tower", 0) == []
