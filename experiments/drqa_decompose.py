"""DrQA's reader given the paragraph, given the document, and over a whole corpus.

With --documents=FILE it only writes the articles of SQuAD, to be built into the corpus of the run
together with others: `orqa corpus FILE others.jsonl --out RUN/corpus ...`, `orqa drqa-index`.

python -m experiments.drqa_decompose --config=experiments/configs/drqa_decompose.py
"""

from pathlib import Path

from absl import flags

from experiments.command_line import run_experiment
from orqa_jax.baselines.drqa.squad import DrqaDecomposeConfig, decompose, write_documents

_DOCUMENTS = flags.DEFINE_string("documents", None, "write SQuAD's articles there, and stop")


def main(config: DrqaDecomposeConfig) -> None:
    if _DOCUMENTS.value:
        write_documents(Path(config.squad), Path(_DOCUMENTS.value))
    else:
        print(decompose(config))


if __name__ == "__main__":
    run_experiment(DrqaDecomposeConfig, main)
