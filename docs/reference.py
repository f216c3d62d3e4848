"""Writes docs/configuration.md from the settings' dataclasses: python -m docs.reference

A test (tests/test_docs.py) fails while the committed page is another than this makes.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from experiments.sweep import SweepConfig
from orqa_jax.baselines.dense import UntrainedConfig
from orqa_jax.baselines.drqa.squad import DrqaDecomposeConfig, DrqaSquadConfig
from orqa_jax.baselines.drqa.train import DrqaTrainConfig
from orqa_jax.fit import FitConfig
from orqa_jax.predict import CompareConfig
from orqa_jax.serve.config import ServeConfig
from orqa_jax.train.config import describe_fields
from orqa_jax.train.encode import EncodeConfig
from orqa_jax.train.finetune import FinetuneConfig
from orqa_jax.train.ict import ICTConfig
from orqa_jax.train.reading import ReadConfig

PAGE = Path(__file__).with_name("configuration.md")

# A title, what reads the settings, and their class.
SETTINGS: list[tuple[str, str, type]] = [
    ("One command on your documents", "`orqa fit`", FitConfig),
    ("Pre-training", "`orqa ict`, `python -m experiments.ict_pretrain`", ICTConfig),
    ("Encoding the corpus", "`python -m experiments.encode_blocks`", EncodeConfig),
    ("Fine-tuning", "`orqa finetune`, `python -m experiments.nq_finetune`", FinetuneConfig),
    ("Reading from gold spans", "`orqa read`", ReadConfig),
    ("Serving", "`orqa serve`", ServeConfig),
    ("A dense retriever without pre-training", "`orqa untrained`", UntrainedConfig),
    ("Comparing the systems of a run", "`python -m experiments.evaluate`", CompareConfig),
    ("One change at a time", "`python -m experiments.sweep`", SweepConfig),
    ("DrQA's reader", "`orqa drqa-train`", DrqaTrainConfig),
    ("DrQA on SQuAD", "`python -m experiments.drqa_squad`", DrqaSquadConfig),
    (
        "Where DrQA's answers are lost",
        "`python -m experiments.drqa_decompose`",
        DrqaDecomposeConfig,
    ),
]

HEAD = """\
# Every setting

<!-- Made by `python -m docs.reference` from the docstrings in the code. Change those, not this. -->

Commands take a setting as a flag, `batch_size` as `--batch-size 64`, a yes or no as
`--early-update` or `--no-early-update`. Those that train also take `--run FOLDER`, which sets the
places within a run folder, and `--config FILE`, a Python file with `get_config()`; a flag beats the
file, and the file beats the folder. Scripts take `--config=FILE` and `--config.batch_size=64`. What
nothing reads is an error, in a file as on the command line. A setting without a default has to be
given.
"""


def configuration_page() -> str:
    """The whole page, in Markdown."""
    parts = [HEAD]
    for title, reader, cls in SETTINGS:
        about = (cls.__doc__ or "").splitlines()[0]
        parts.append(f"## {title}\n\n{reader}. {about} (`{cls.__module__}.{cls.__name__}`)\n")
        parts.append("| setting | type | default | meaning |\n|---|---|---|---|")
        parts.extend(rows(cls))
        parts.append("")
    return "\n".join(parts)


def rows(cls: Any) -> list[str]:
    """A row of the table for each field."""
    hints, described = get_type_hints(cls), describe_fields(cls)
    made = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        kind = hint.__name__
        if get_origin(hint) is Literal:
            kind = ", ".join(f'"{choice}"' for choice in get_args(hint))
        default = "" if field.default is dataclasses.MISSING else f"`{shown(field.default)}`"
        told = re.sub(r"``", "`", described[field.name])
        cells = (f"`{field.name}`", kind, default, told)
        made.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return made


def shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    PAGE.write_text(configuration_page(), encoding="utf-8")
