"""Writes TensorFlow's files byte by byte: checkpoints, TFRecords and examples."""

import struct

import numpy as np

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bool": 10, "float16": 19}


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def block(pairs):
    """A LevelDB block: each key holds what it shares with the one before, restarts every third."""
    out, restarts, before = b"", [], b""
    for place, (key, value) in enumerate(pairs):
        shared = 0
        if place % 3 == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        out += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        before = key
    restarts = restarts or [0]
    return out + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def write_bundle(prefix, tensors, *, per_block=4, extra=()):
    """`extra` holds raw (name, entry) pairs beside the tensors."""
    data, entries = b"", [(b"", number(1, 1) + message(3, number(1, 1)))]
    for name in sorted(tensors):
        value = np.asarray(tensors[name], order="C")
        shape = b"".join(message(2, number(1, size)) for size in value.shape)
        entry = number(1, DTYPES[value.dtype.name]) + message(2, shape)
        entry += number(4, len(data)) + number(5, value.nbytes)
        entries.append((name.encode(), entry + varint(6 << 3 | 5) + b"\0\0\0\0"))
        data += value.tobytes()
    entries = sorted([*entries, *extra])
    table, handles = b"", []
    for start in range(0, len(entries), per_block):
        part = block(entries[start : start + per_block])
        handles.append((entries[start : start + per_block][-1][0], len(table), len(part)))
        table += part + b"\0" * 5
    meta, meta_place = block([]), len(table)
    table += meta + b"\0" * 5
    index = block([(key, varint(place) + varint(size)) for key, place, size in handles])
    footer = varint(meta_place) + varint(len(meta)) + varint(len(table)) + varint(len(index))
    table += index + b"\0" * 5 + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".index").write_bytes(table)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    return prefix


def write_records(path, records):
    with path.open("wb") as file:
        for record in records:
            file.write(struct.pack("<Q", len(record)) + b"\0" * 4 + record + b"\0" * 4)
    return path


def example(**features):
    """A tf.train.Example of integers."""
    entries = b""
    for name, values in features.items():
        packed = (
            message(1, b"".join(varint(int(value)) for value in values)) if len(values) else b""
        )
        entries += message(1, message(1, name.encode()) + message(2, message(3, packed)))
    return message(1, entries)
