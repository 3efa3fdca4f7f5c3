"""Random blocks of every format, and an independent computation of their native product."""

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from jaxspec.ops.stored import BLOCKS

# Offsets of the half-precision numbers in a block.
HALVES = {
    "INT4": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),  # a power of two
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q8_0": (0,),
}
_GROUP, _ONE_IN = 32, 8


def random_blocks(name: str, out: int, width: int, seed: int = 0) -> np.ndarray:
    """Returns rows of random blocks `[out, bytes]`: any codes and factors, small scales of both signs."""
    rng = np.random.default_rng(seed)
    inputs, size = BLOCKS[name]
    blocks = rng.integers(0, 256, (out, width // inputs, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[..., 2] = rng.integers(0, 17, blocks.shape[:2]) if name == "INT4" else blocks[..., 2]
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(128 - 24, 128 - 4, blocks.shape[:2])
    return blocks.reshape(out, width // inputs * size)


def values(name: str, rows: np.ndarray) -> np.ndarray:
    """Returns what `gguf` makes of them, which has all formats but one."""
    if name == "INT4":
        blocks = rows.reshape(len(rows), -1, BLOCKS[name][1])
        scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
        codes = np.concatenate([blocks[..., 3:] & 15, blocks[..., 3:] >> 4], axis=-1).astype(np.float32)
        return (scale * (codes - blocks[..., 2:3])).reshape(len(rows), -1)
    return dequantize(rows, GGMLQuantizationType[name])


def rounded(x: np.ndarray) -> np.ndarray:
    """Rounds activations `[rows, in]` as the kernels do, in float64.

    To int8 with a scale for each 32; to 16 bits in one group of eight, those of the largest magnitude.
    """
    groups = x.reshape(len(x), -1, _GROUP).astype(np.float32)
    most = np.abs(groups).max(axis=-1)
    count = -(-groups.shape[1] // _ONE_IN)
    order = np.argsort(-most, axis=1, kind="stable")
    fine = np.zeros(most.shape, bool)
    np.put_along_axis(fine, order[:, :count], True, axis=1)
    limit = np.where(fine, np.float32(127 * 256), np.float32(127))
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(most > 0, limit / most, np.float32(0))
    whole = np.round((groups * inverse[..., None]).astype(np.float32)).astype(np.float64)
    return (whole * (most / limit).astype(np.float64)[..., None]).reshape(x.shape)
