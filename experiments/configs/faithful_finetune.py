"""Fine-tuning as the 2019 release does it; docs/fidelity.md says where it differs.

Two epochs are for Natural Questions, TriviaQA and SQuAD; --config.epochs=20 for WebQuestions and
CuratedTREC.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "corpus": "runs/faithful/corpus",
            "retriever": "runs/faithful/ict/model",
            "index": "runs/faithful/index",
            "train": "runs/faithful/train.jsonl",
            "out": "runs/faithful/finetune",
            "encoder": "runs/bert_uncased_L-12_H-768_A-12",
            "epochs": 2,
            "batch_size": 1,
            "learning_rate": 1e-5,
            "head_learning_rate_factor": 1.0,
            "warmup_share": 0.1,
            "optimizer": "bert",
            "weight_decay": 0.01,
            "early_update_beam": 5000,
            "reader_beam": 5,
            "reader_length": 320,
            "max_span_wordpieces": 10,
            "whole_word_spans": False,
            "substring_labels": True,
            "span_hidden_size": 256,
            "frozen_layers": 0,
            "dropout": 0.1,
            "checkpoint_every": 1000,
            "log_every": 100,
        }
    )
