"""Reads the file of an offline run of Weights & Biases."""

import json
import struct

import wandb
from wandb.proto import wandb_internal_pb2

BLOCK, HEADER, FIRST = 32768, 7, 7
"""The log format of LevelDB: blocks of records, each after a checksum, a length and a kind, and a header before all."""
FULL, LAST = 1, 4


def records(folder):
    """All records of the only run in this folder, oldest first; all runs must be finished."""
    wandb.teardown()  # another process writes the file, and is done only when it has ended
    [path] = folder.rglob("*.wandb")
    data, place, parts = path.read_bytes(), FIRST, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:  # no record begins here
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        parts += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def of_kind(folder, kind):
    return [getattr(record, kind) for record in records(folder) if record.WhichOneof("record_type") == kind]


def rows(folder):
    """The rows that were logged, each a dictionary with W&B's own step as ``_step``."""
    return [
        {"_step": row.step.num} | {"/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in of_kind(folder, "history")
    ]


def summary(folder):
    """The last value of each name."""
    found = {}
    for record in of_kind(folder, "summary"):
        found |= {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.update}
    return found
