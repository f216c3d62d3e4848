import dataclasses
import json

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tiny_world import FINETUNE_SETTINGS, ICT_SETTINGS, world

from orqa_jax.errors import OrqaError
from orqa_jax.train.ict import batch_shapes, step_batch
from orqa_jax.train.mesh import make_mesh
from orqa_jax.train.plan import (
    CHIPS,
    Collective,
    StepPlan,
    find_collectives,
    format_plan,
    print_plan,
    read_settings,
    topology_devices,
)

SETTINGS = {"encoder": str(world().encoder), **ICT_SETTINGS}


def test_exchanges_of_a_compiled_program():
    mesh = make_mesh()
    split = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())

    def function(x):
        whole = jax.lax.with_sharding_constraint(x, everywhere)
        return whole, x.sum()

    shape = jax.ShapeDtypeStruct((16, 4), np.float32, sharding=split)
    compiled = jax.jit(function, out_shardings=everywhere).lower(shape).compile()
    found = {each.kind: each for each in find_collectives(compiled.as_text(), 8)}
    assert found == {
        "all-gather": Collective("all-gather", ((16, 4),), 16 * 4 * 4 * 7 / 8),
        "all-reduce": Collective("all-reduce", ((),), 2 * 4 * 7 / 8),
    }


def test_exchanges_in_the_form_of_accelerators():
    text = """
  %ag = (bf16[2,128]{1,0}, bf16[32,128]{1,0:T(8,128)}) all-gather-start(%x), dimensions={0}
  %done = bf16[32,128]{1,0} all-gather-done(%ag)
  %ar = (f32[3,5]{1,0}, /*index=1*/ s8[7]{0}) all-reduce-start(%y, %z), to_apply=%add
  %rs = f32[4]{0} reduce-scatter(%w), dimensions={0}
  %not = f32[9]{0} fusion(%all-reduce.3), calls=%c
"""
    assert list(find_collectives(text, 16)) == [
        Collective("all-gather", ((32, 128),), 32 * 128 * 2 * 15 / 16),
        Collective("all-reduce", ((3, 5), (7,)), 2 * (60 + 7) * 15 / 16),
        Collective("reduce-scatter", ((4,),), 16 * 15),
    ]


def test_a_plan_of_this_machine(capsys):
    sections = {"ict": SETTINGS, "finetune": FINETUNE_SETTINGS}
    print_plan(sections, "host", blocks=92, questions=30, as_json=True)
    plans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [plan["name"] for plan in plans]
    for name, word in zip(
        names,
        ("ict, 2 rows", "encoding", "search, top 12 of 92", "finetune, batch 8"),
        strict=True,
    ):
        assert word in name
    for plan in plans:
        assert (plan["devices"], plan["kind"], plan["hours"]) == (8, "cpu", None)
        parts = ("parameters", "optimizer", "index", "inputs", "activations")
        assert plan["memory"] == sum(plan[part] for part in parts)


def test_settings_of_both_trainings():
    ict, finetuning = read_settings({"ict": {**SETTINGS, "dtype": "bfloat16"}})
    assert (finetuning.dtype, finetuning.encoder) == ("bfloat16", ict.encoder)
    assert read_settings(SETTINGS)[0] == dataclasses.replace(ict, dtype="float32")
    with pytest.raises(OrqaError, match="did you mean steps"):
        read_settings({**SETTINGS, "setps": 3})


def test_hours_are_the_compilers_or_follow_from_the_chip():
    plan = StepPlan(
        "x",
        calls=3600,
        parameters=1,
        optimizer=2,
        index=3,
        inputs=4,
        activations=5,
        flops=197e12,
        bytes_accessed=0.0,
        collectives=(Collective("all-reduce", ((),), 200e9),),
        seconds=None,
    )
    assert plan.memory == 15
    assert plan.hours(CHIPS["v5e"]) == pytest.approx(2.0)
    told = format_plan(plan, CHIPS["v5e"])
    assert "the whole run   2.00 h, 3600 calls" in told
    assert "sent to peers   200.00 GB, 1.0000 s (1 all-reduce)" in told
    assert dataclasses.replace(plan, seconds=0.5).hours(CHIPS["v5e"]) == pytest.approx(0.5)


def test_planned_batches_are_those_of_the_run():
    config = read_settings({**SETTINGS, "corpus": str(world().store.folder)})[0]
    batch = step_batch(config, 1, 0, 0)
    shapes = batch_shapes(config, most_sentences=batch["sentence_hashes"].shape[1])
    found = jax.tree.map(lambda x: (x.shape, x.dtype), batch)
    assert found == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)


def test_what_is_not_known_is_named(tmp_path):
    with pytest.raises(OrqaError, match=r"v9x:2x2.*v5e:4x8"):
        topology_devices("v9x:2x2")
    with pytest.raises(OrqaError, match=r"config\.json does not exist"):
        print_plan({"encoder": str(tmp_path)}, "host", blocks=9, questions=9)
    with pytest.raises(OrqaError, match="--chunk"):
        print_plan(SETTINGS, "host", blocks=9, questions=9, find_chunk=True)


def test_without_libtpu_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OrqaError, match=r"libtpu.*pip install"):
        topology_devices("v5e:4x8")
