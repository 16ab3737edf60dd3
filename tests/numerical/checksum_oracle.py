"""Checksums by NumPy, word by word."""

import numpy as np

ALL = (1 << 64) - 1


def signed(number, bits):
    """The number as two's complement of so many bits."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def odd_number(place, which):
    number = signed((place + 1) * -7046029254386353131 + which, 64)
    number = signed((number ^ (number >> 30)) * -4658895280553007687, 64)
    number = signed((number ^ (number >> 27)) * -7723592293110705685, 64)
    return (number ^ (number >> 31)) | 1


WEIGHTS = [signed(odd_number(place, 2) >> 16, 32) | 1 for place in range(4096)]


def checksum(array):
    """An int64 from the bytes of an array."""
    raw = np.ascontiguousarray(array).tobytes()
    words = np.frombuffer(raw + bytes(-len(raw) % 4), np.int32).tolist()
    rows = [words[start : start + 4096] for start in range(0, len(words) - 4095, 4096)]
    total = sum(row_sum(row) * odd_number(number, 1) for number, row in enumerate(rows))
    return signed(total + row_sum(words[len(rows) * 4096 :]), 64)


def row_sum(words):
    """Products of 32 bits, added in pairs: the second one counts 2^32 times."""
    products = [signed(word * weight, 32) for word, weight in zip(words, WEIGHTS, strict=False)]
    products += [0] * (len(products) % 2)
    return sum((low & 0xFFFFFFFF) + (high << 32) for low, high in zip(products[::2], products[1::2], strict=True))


def shown(array):
    """The 24 bits that are shown."""
    total = checksum(array)
    return float((total ^ (total >> 24) ^ (total >> 48)) & ((1 << 24) - 1))
