"""Trees of qwix's QArrays: equal numbers in any wrapper; an error names what cannot be converted."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.nn.network import packed_weights
from tests._fixtures import tiny

MODEL = tiny.transformer(tied_head=False, qkv_bias=True)
RNG = np.random.default_rng(0)


@dataclasses.dataclass
class QArray:
    """The fields of qwix 0.1's."""

    qvalue: Any
    scale: Any
    zero_point: Any = None
    qtype: Any = None


@dataclasses.dataclass
class WithAux:
    """The field of qwix's that holds a QArray."""

    array: Any


def integers(dtype, shape):
    limits = jnp.iinfo(dtype)
    return jnp.asarray(RNG.integers(limits.min, limits.max + 1, size=shape), dtype)


def scales(shape):
    return jnp.asarray(RNG.uniform(0.01, 0.1, size=shape), jnp.float32)


def dense(array) -> np.ndarray:
    """(qvalue - zero_point) * scale, as qwix says, in float64."""
    values = np.asarray(array.qvalue, np.float64)
    spread = lambda x: np.kron(np.asarray(x, np.float64), np.ones(np.array(values.shape) // np.array(x.shape)))
    return (values - (0 if array.zero_point is None else spread(array.zero_point))) * spread(array.scale)


def with_head(head):
    return jaxspec.nn.from_qwix(MODEL, MODEL.params | {"head": head})


@pytest.mark.parametrize(
    ("dtype", "scale", "zero"),
    [
        (jnp.int8, (11, 1), None),
        (jnp.int4, (11, 2), None),
        (jnp.int4, (1, 4), (11, 2)),
        (jnp.uint4, (11, 2), (11, 2)),
        (jnp.uint8, (11, 4), None),
    ],
)
def test_the_numbers_are_those_of_the_array(dtype, scale, zero):
    """One scale an output, tiles of inputs, tiles over outputs, and integers without a sign."""
    array = QArray(integers(dtype, (11, 16)), scales(scale), None if zero is None else integers(dtype, zero))
    head = with_head(array).params["head"]
    np.testing.assert_allclose(np.asarray(head[:], np.float64), dense(array), rtol=2e-7)
    assert head.values.dtype == (jnp.int8 if dtype in (jnp.int8, jnp.uint8) else jnp.int4)
    assert head.dtype == MODEL.dtype


def test_wrapped_arrays_and_mappings_are_the_same():
    array = QArray(integers(jnp.int4, (11, 16)), scales((11, 2)))
    fields = {"qvalue": np.asarray(array.qvalue), "scale": np.asarray(array.scale)}  # as a checkpoint is read
    expected = with_head(array).params["head"]
    for other in (WithAux(array), fields, {"array": fields}):
        found = with_head(other).params["head"]
        for one, same in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.slow
def test_a_model_of_them_decodes():
    """Each weight that is an array of qwix is packed, the others are as they were; speculation is exact."""

    def quantized(path, x):
        if path[-1].key not in ("kernel", "embedding", "head"):
            return x
        scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
        return QArray(jnp.round(x / scale).astype(jnp.int8), scale)

    target = jaxspec.nn.from_qwix(MODEL, jax.tree.map_with_path(quantized, MODEL.params))
    assert len(packed_weights(target)) == 7
    prompts = jnp.asarray(RNG.integers(0, tiny.VOCAB, size=(2, 6)), jnp.int32)
    run = lambda drafter: jaxspec.generate(target, drafter, prompts, max_new_tokens=20).tokens
    np.testing.assert_array_equal(run(jaxspec.ModelDrafter(MODEL, k=3)), run(None))
    nearly = jaxspec.quantize_weights(MODEL)
    call = lambda model: model(prompts, model.init_cache(2, 8)).logits
    np.testing.assert_allclose(call(target), call(nearly), atol=1e-4)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (
            QArray(np.zeros((16, 11), np.int8), np.ones((1, 11))),
            r"head must have shape \(11, 16\), with the inputs last",
        ),
        (np.zeros((11, 15)), r"head must have shape \(11, 16\), .* got \(11, 15\)"),
        (QArray(np.zeros((11, 16), np.int8), np.ones((11, 3))), r"head has values \(11, 16\) and scales \(11, 3\)"),
        (QArray(np.zeros((11, 16), np.int8), np.ones(11)), r"scales \(11,\), whose axes must divide the values'"),
        (QArray(np.zeros((11, 16), np.int8), np.ones((11, 1)), np.zeros((11, 3), np.int8)), r"\(11, 1\) and \(11, 3\)"),
        (QArray(np.zeros((11, 16), np.float32), np.ones((11, 1))), "integers of up to 8 bits, got float32"),
        (QArray(np.zeros((11, 16), np.uint8), np.ones((11, 1)), qtype="nf4"), "integers of up to 8 bits, got nf4"),
        (QArray(np.zeros((11, 16), np.int16), np.ones((11, 1))), "integers of up to 8 bits, got int16"),
    ],
)
def test_what_cannot_be_taken_over_is_said(head, text):
    with pytest.raises(ValueError, match=text):
        with_head(head)


def test_a_tree_of_another_model_is_said():
    with pytest.raises(ValueError, match="the tree must have the parameters embedding, final_norm, head, layer_0, got"):
        jaxspec.nn.from_qwix(MODEL, {"embedding": MODEL.params["embedding"]})
    with pytest.raises(ValueError, match="final_norm must have the parameters scale, got ArrayImpl"):
        jaxspec.nn.from_qwix(MODEL, MODEL.params | {"final_norm": jnp.ones(16)})
    norm = {"scale": QArray(np.zeros(16, np.int8), np.ones(1))}
    with pytest.raises(ValueError, match="final_norm/scale is not a weight of a product, and must be an array"):
        jaxspec.nn.from_qwix(MODEL, MODEL.params | {"final_norm": norm})
    with pytest.raises(TypeError, match="model on one device"):
        jaxspec.nn.from_qwix(jaxspec.shard(MODEL, jax.make_mesh((1,), ("model",))), MODEL.params)
    with pytest.raises(TypeError, match="takes a LanguageModel of a jaxspec.nn.Transformer, got Other"):
        other = dataclasses.replace(MODEL, module=type("Other", (), {})())
        jaxspec.nn.from_qwix(other, MODEL.params)


@pytest.mark.reference
@pytest.mark.parametrize("method", ["absmax", "minmax"])
def test_it_agrees_with_qwix(method):
    qwix = pytest.importorskip("qwix")
    weight = MODEL.params["head"]
    for dtype in ("int8", "int4"):
        array = qwix.quantize(weight, dtype, channelwise_axes=[0], tiled_axes={1: 8}, calibration_method=method)
        head = with_head(array).params["head"]
        np.testing.assert_allclose(head[:], qwix.dequantize(array), rtol=1e-6, atol=1e-9)
