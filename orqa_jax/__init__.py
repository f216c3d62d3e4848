"""Open-retrieval question answering (ORQA, Lee et al. 2019) in JAX.

Array names end in the letters of their dimensions, everywhere in this package:

| letter | dimension |
|---|---|
| ``B`` | batch (questions, or pseudo-questions of the Inverse Cloze Task) |
| ``L`` | wordpieces of one sequence |
| ``H`` | hidden size of an encoder |
| ``P`` | projection: size of a retrieval vector (128 in the paper) |
| ``N`` | blocks of the corpus |
| ``C`` | early-update beam: blocks whose retrieval score is trained (5000) |
| ``K`` | reader beam: blocks that are read (5) |
| ``W`` | width of a span in wordpieces, counted from 1 at index 0 |
| ``S`` | candidate spans of one block, ``S = L * W`` |
| ``A`` | answers of one question |
| ``V`` | entries of the vocabulary |

So ``question_BP`` holds one retrieval vector a question. A boolean mask is True on what is real.
A *block* is a passage of evidence, a *wordpiece* a token of the BERT vocabulary.
"""

__version__ = "0.1.0"
