"""Creates untrained DFlash heads, as a start of training."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from jaxspec.core.typed import DEPTH, WIDTH, typed
from jaxspec.heads import untrained
from jaxspec.heads.dflash.correction import Correction
from jaxspec.heads.dflash.head import DFlashHead
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.heads.dflash.selector import Convolution
from jaxspec.nn.language_model import LanguageModel


@typed("capture", "confidence", block_size=DEPTH, num_layers=DEPTH, mlp_width=WIDTH, markov_rank=(0, 2**20))
def init(
    target: LanguageModel,
    rng: Array,
    *,
    capture: tuple[int, ...] | None = None,
    draft_vocabulary: int | None = None,
    block_size: int = 7,
    num_layers: int = 2,
    mlp_width: int = 1024,
    markov_rank: int = 64,
    confidence: bool = True,
    token_counts: np.ndarray | None = None,
    dtype: DTypeLike | None = None,
) -> DFlashHead:
    """Creates an untrained DFlash head with DSpark's Markov and confidence heads, as a start of training.

    Its output head and last norm are the target's, the highest captured state enters its context unchanged, and the
    Markov head does not change logits yet.

    Args:
      target: the model to draft for.
      rng: a JAX key for the random weights.
      capture: the target's hidden states that it reads; `None` means four, evenly spaced.
      draft_vocabulary: how many of the most frequent tokens it can guess; `None` means all of them.
      block_size: the number of drafts of a block.
      num_layers: the number of layers.
      mlp_width: the inner width of its feed-forward blocks.
      markov_rank: the rank of its Markov head; 0 means none.
      confidence: whether it has a confidence head.
      token_counts: how often each token occurs in texts, `int64[v]`; `None` means all equally often.
      dtype: the dtype of weights and activations; `None` uses the target's. Scales of norms are float32.

    Returns:
      A `DFlashHead`, like those read from folders.

    Raises:
      ValueError: a number is out of range.

    References:
      DFlash (2026), arXiv:2602.06036.
      DSpark, the paper in the repository deepseek-ai/DeepSpec, section 3.1.

    Example:
      >>> head = jaxspec.heads.dflash.init(target, key, block_size=3, num_layers=1, mlp_width=32)
      >>> jaxspec.generate(target, jaxspec.DFlashDrafter(head), prompt, key=key, max_new_tokens=8).tokens.shape
      (2, 8)
    """
    untrained.check_arguments(target, rng, dtype, capture)
    capture = default_capture(target) if capture is None else capture
    ids = jnp.asarray(untrained.draft_vocabulary(target, draft_vocabulary, token_counts))
    module = network_for(
        target,
        capture,
        ids.shape[0],
        block_size=block_size,
        num_layers=num_layers,
        mlp_width=mlp_width,
        markov_rank=markov_rank,
        confidence=confidence,
        dtype=jnp.float32,
    )
    dtype = jnp.dtype(target.dtype if dtype is None else dtype)
    return begun(module, target, rng, ids, capture, dtype)


def begun(
    module: DFlashNetwork, target: LanguageModel, rng: Array, ids: Int[Array, "n"], capture: tuple[int, ...], dtype: Any
) -> DFlashHead:
    """Returns a network with parameters to start training from, whose correction does not change logits yet.

    Args:
      module: the network, in float32.
      target: the model to draft for.
      rng: a JAX key for the random weights.
      ids: the draft vocabulary.
      capture: the target's hidden states that it reads.
      dtype: the dtype of weights and activations.
    """
    params = jax.jit(functools.partial(module.init, method="every_parameter"))(rng)["params"]
    # The frozen output head expects normalized states of the target, and the highest state is the most informative.
    params["final_norm"] = {"scale": untrained.final_norm(target)["scale"]}
    config, width = module.config, module.config.width
    params["mix"] = {"kernel": params["mix"]["kernel"].at[:, -width:].add(jnp.eye(width, dtype=jnp.float32))}
    if config.markov_rank:
        # Similar tokens of the target start with similar rows; at first, none of them changes the next logits.
        params["markov_before"] = _principal_components(target, ids, config.markov_rank)
        params["markov_after"] = jnp.zeros_like(params["markov_after"])
    if config.correction is not None:
        every = jnp.arange(target.vocab_size, dtype=jnp.int32)
        rows = functools.partial(_principal_components, target, every)
        params["correction"] = config.correction.begun(params["correction"], lambda rank: rows(rank)[:-1])
    if config.convolution is not None:
        for layer, part in itertools.product(range(config.num_layers), ("attention_conv", "mlp_conv")):
            params[f"layer_{layer}"][part] = config.convolution.begun(params[f"layer_{layer}"][part])
    params = untrained.in_dtype(params | {"head": target.head[ids]}, dtype)
    return DFlashHead.of(dataclasses.replace(module, dtype=dtype), params, ids, capture, target.vocab_size)


def default_capture(target: LanguageModel) -> tuple[int, ...]:
    """Returns the states of a target that DFlash reads: the outputs of four layers, evenly spaced."""
    layers = target.module.config.num_layers
    spaced = {round(1 + i * max(layers - 4, 0) / 3) + 1 for i in range(4)}
    return tuple(sorted(min(layer, layers) for layer in spaced))


def network_for(
    target: LanguageModel,
    capture: tuple[int, ...],
    vocab_size: int,
    *,
    block_size: int,
    num_layers: int,
    mlp_width: int,
    markov_rank: int,
    confidence: bool,
    dtype: DTypeLike,
    first_predicts: bool = True,
    correction: Correction | None = None,
    convolution: Convolution | None = None,
) -> DFlashNetwork:
    """Returns the network that fits a target.

    Args:
      target: the model to draft for.
      capture: the target's hidden states that it reads.
      vocab_size: the number of tokens that it can guess.
      block_size: the number of tokens of a block.
      num_layers: the number of layers.
      mlp_width: the inner width of its feed-forward blocks.
      markov_rank: the rank of its Markov head; 0 means none.
      confidence: whether it has a confidence head.
      dtype: the dtype of weights and activations.
      first_predicts: whether the block's first place predicts the token after it.
      correction: the correction of drafts, instead of a Markov head.
      convolution: the convolutions around each sublayer.
    """
    config = target.module.config
    rank = markov_rank if correction is None else correction.token_rank
    shape = DFlashConfig(
        vocab_size=vocab_size,
        num_layers=num_layers,
        width=config.width,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=mlp_width,
        context_length=config.context_length,
        ropes=(untrained.rope_of(target),) * num_layers,
        windows=(None,) * num_layers,
        norm_eps=config.norm_eps,
        activation=config.activation,
        block_size=block_size,
        num_features=len(capture),
        feature_norms=True,
        markov_rank=markov_rank,
        confidence="none" if not confidence else "place and token" if rank else "place",
        first_predicts=first_predicts,
        correction=correction,
        convolution=convolution,
    )
    return DFlashNetwork(shape, jnp.dtype(dtype))


def _principal_components(target: LanguageModel, ids: Int[Array, "n"], rank: int) -> Float[Array, "n_plus_1 r"]:
    """Returns the first principal components of the draft vocabulary's embeddings, with variance 1 and a zero row."""
    rows = np.asarray(target.embed(ids[None])[0], np.float32)
    rows = rows - rows.mean(axis=0)
    _, directions = np.linalg.eigh(rows.T @ rows)
    found = rows @ directions[:, ::-1][:, :rank]
    found = found / np.maximum(found.std(axis=0), 1e-6)
    found = np.pad(found, ((0, 1), (0, rank - found.shape[1])))
    return jnp.asarray(found, jnp.float32)
