"""Unpacks small numbers from words of 32 bits, in which all layouts put them from the lowest bits on; packs them."""

import numpy as np


def unpack(words: np.ndarray, bits: int) -> np.ndarray:
    """Returns the numbers in rows of words, as uint8.

    Args:
      words: `[n, m]`, int32 or uint32.
      bits: of each number: 4, of which a word holds eight, or 8.
    """
    octets = np.ascontiguousarray(words, words.dtype.newbyteorder("<")).view(np.uint8)
    return octets if bits == 8 else np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(words), -1)


def center(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Returns how far numbers from 0 to `2**bits - 1` lie above the middle, `2**(bits - 1)`, as int8."""
    return (numbers - np.uint8(1 << bits - 1)).view(np.int8)


def pack(values: np.ndarray, bits: int) -> np.ndarray:
    """Returns rows of words, int32, that hold numbers from `-2**(bits - 1)` on, as `center` and `unpack` read them.

    Args:
      values: `[n, m]`, int8; a word holds `32 // bits` of them, which must divide `m`.
      bits: of each: 4 or 8.
    """
    octets = values.view(np.uint8) + np.uint8(1 << bits - 1)
    if bits == 4:
        octets = octets[:, ::2] | octets[:, 1::2] << 4
    return np.ascontiguousarray(octets).view("<i4")
