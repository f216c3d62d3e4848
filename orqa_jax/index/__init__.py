"""Search over the blocks of a corpus: exact dense search and BM25, behind one protocol."""
