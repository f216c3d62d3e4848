import ast
import dataclasses
import re
from pathlib import Path
from typing import Literal

import pytest

import orqa_jax
from orqa_jax.baselines.drqa.train import DrqaTrainConfig
from orqa_jax.errors import OrqaError
from orqa_jax.predict import CompareConfig
from orqa_jax.train.config import check_ranges, load_config_file, make_config
from orqa_jax.train.encode import EncodeConfig
from orqa_jax.train.finetune import FinetuneConfig
from orqa_jax.train.ict import ICTConfig
from orqa_jax.train.reading import ReadConfig

PACKAGE = Path(orqa_jax.__file__).parent
DRQA = PACKAGE / "baselines" / "drqa" / "train.py"
CONFIGS = [ICTConfig, EncodeConfig, FinetuneConfig, ReadConfig, DrqaTrainConfig, CompareConfig]


@dataclasses.dataclass(frozen=True)
class Kettle:
    material: str
    litres: float = 1.5
    cups: int = 6
    whistles: bool = True
    handle: Literal["left", "right"] = "right"


def test_values_and_defaults():
    assert make_config(Kettle, {"material": "copper", "cups": 4}) == Kettle("copper", cups=4)


def test_a_whole_number_serves_where_a_float_is_asked_for():
    made = make_config(Kettle, {"material": "tin", "litres": 2})
    assert made.litres == 2.0
    assert type(made.litres) is float


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"material": "tin", "litre": 2.0}, ["litre;", "did you mean litres?"]),
        ({"material": "tin", "zzzz": 1}, ["zzzz", "known are material, litres"]),
        ({"cups": 1}, ["needs", "material"]),
        ({"material": "tin", "cups": 1.0}, ["cups", "1.0", "int"]),
        ({"material": "tin", "cups": True}, ["cups", "True", "int"]),
        ({"material": "tin", "cups": "4"}, ["cups", "'4'", "int"]),
        ({"material": "tin", "litres": "much"}, ["litres", "'much'", "float"]),
        ({"material": 5}, ["material", "5", "str"]),
        ({"material": "tin", "whistles": 1}, ["whistles", "1", "bool"]),
        ({"material": "tin", "handle": "top"}, ["handle", '"top"', "'left' or 'right'"]),
    ],
)
def test_a_wrong_setting_is_named(values, words):
    with pytest.raises(OrqaError) as raised:
        make_config(Kettle, values)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


def test_a_config_file(tmp_path):
    path = tmp_path / "kettle.py"
    path.write_text("def get_config():\n    return {'material': 'tin', 'cups': 3}\n")
    assert load_config_file(path) == {"material": "tin", "cups": 3}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.py", None, ["no config file", "missing.py"]),
        ("notes.txt", "cups = 3", ["notes.txt", ".py"]),
        ("empty.py", "", ["empty.py", "get_config"]),
        ("broken.py", "def get_config(:", ["broken.py", "SyntaxError"]),
        ("raises.py", "def get_config():\n    return {}['pot']\n", ["raises.py", "KeyError"]),
    ],
)
def test_a_config_file_that_fails_is_named(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(OrqaError) as raised:
        load_config_file(tmp_path / name)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


@dataclasses.dataclass(frozen=True)
class Lesson:
    learning_rate: float = 0.1
    dropout: float = 0.0
    epochs: float = 1.0
    mask_rate: float = 1.0
    reading_share: float = 1.0
    warmup_share: float = 0.0
    pupil: Literal["cat", "dog"] = "cat"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("learning_rate", (0.0, -1.0, 1.5)),
        ("dropout", (-0.1, 1.0)),
        ("epochs", (0.0, -2.0)),
        ("mask_rate", (-0.1, 1.1)),
        ("reading_share", (0.0, 1.1)),
        ("warmup_share", (-0.1, 1.1)),
        ("learning_rate", (float("nan"),)),
        ("pupil", ("cow",)),
    ],
)
def test_what_cannot_be_is_named(name, values):
    check_ranges(Lesson())
    for value in values:
        with pytest.raises(OrqaError, match=f"^{name} is .*; it (can|has to) be "):
            check_ranges(Lesson(**{name: value}))


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_setting_is_read_somewhere(cls):
    """A setting that nothing reads would be a promise that nothing keeps."""
    read = {
        node.attr
        for path in [*(PACKAGE / "train").glob("*.py"), PACKAGE / "predict.py", DRQA]
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("config", "settings")
        and isinstance(node.ctx, ast.Load)
    }
    assert {field.name for field in dataclasses.fields(cls)} <= read


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_setting_is_documented(cls):
    named = re.findall(r"^ {6}(\w+): |``(\w+)``", cls.__doc__, re.MULTILINE)
    assert {field.name for field in dataclasses.fields(cls)} <= {a or b for a, b in named}
