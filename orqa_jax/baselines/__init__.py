"""The systems that ORQA is measured against: DrQA and GloVe alignment; BM25 is in `index`."""
