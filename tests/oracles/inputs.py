"""Model inputs and labels one wordpiece at a time, as the 2019 release defines them."""

import numpy as np

CLS, SEP, PAD = 10, 11, 0


def pair(first, second, length, cls=CLS, sep=SEP, pad=PAD, token_map=None):
    """``[CLS] first [SEP] second [SEP]``: ids, mask, segments, mask of the second part, its map."""
    ids = [cls, *first, sep]
    segments, inside, mapped = [0] * len(ids), [0] * len(ids), [-1] * len(ids)
    for place, token in enumerate(second):
        if len(ids) == length - 1:
            break
        ids.append(token)
        segments.append(1)
        inside.append(1)
        mapped.append(place if token_map is None else token_map[place])
    ids, segments, inside, mapped = [*ids, sep], [*segments, 1], [*inside, 0], [*mapped, -1]
    empty = length - len(ids)
    mask = [1] * len(ids) + [0] * empty
    return (
        ids + [pad] * empty,
        mask,
        segments + [0] * empty,
        inside + [0] * empty,
        mapped + [-1] * empty,
    )


def single(first, length, cls=CLS, sep=SEP, pad=PAD):
    """``[CLS] first [SEP]``: ids, mask, segments."""
    ids = [cls, *first[: length - 2], sep]
    empty = length - len(ids)
    return ids + [pad] * empty, [1] * len(ids) + [0] * empty, [0] * length


def gold_spans(ids, mask, question_length, answers):
    """All (first, last) where the wordpieces of an answer stand after the question.

    The last [SEP] takes no part.
    """
    end = sum(mask) - 1
    found = []
    for answer in answers:
        for start in range(question_length + 2, end - len(answer) + 1):
            if list(ids[start : start + len(answer)]) == list(answer):
                found.append((start, start + len(answer) - 1))
    return found


def candidates(length, width):
    """All spans (first, last) of up to `width` wordpieces, by width and then by place."""
    return [(s, s + w) for w in range(width) for s in range(length - w)]


def candidate_mask(inside, spans):
    """Both ends lie in the block, so all of the span does."""
    return np.array([bool(inside[s] and inside[e]) for s, e in spans])
