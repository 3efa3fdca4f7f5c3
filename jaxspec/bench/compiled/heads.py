"""Makes drafters of heads by their sizes alone, as none need be at hand to be compiled.

Their weights are shapes, in the dtype and placement of the target's.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxspec.drafters.base import Drafter
from jaxspec.heads import dflash, eagle, medusa
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.sharding.params import shard
from jaxspec.sharding.placement import put

# As the public drafters of Qwen3-4B and 8B have it (z-lab/Qwen3-4B-DFlash-b16).
_DFLASH_LAYERS = 5
_MULTIPLE = 256
# Of a tree where nothing is said: with the last committed token 64.
_NODES, _CHILDREN = 63, 8


@dataclasses.dataclass(frozen=True)
class HeadDraft:
    """Describes a head that a command names without weights: `name` or `name:number`.

    Attributes:
      argument: what the number counts, for the command's help.
      default: that number where none is given.
      make: returns the head of a target and that number. It is traced, not run.
      drafter: makes the drafter of a head with `k` drafts.
      drafts: returns how many drafts a round has by default, of that number.
      passes: returns how many passes of the head a round of `k` drafts has.
      once: parameters that a round reads once, whatever its passes.
      least: the least number.
    """

    argument: str
    default: int
    make: Callable[[LanguageModel, int], Any]
    drafter: Callable[..., Drafter]
    drafts: Callable[[int], int]
    passes: Callable[[int], int]
    once: tuple[str, ...] = ()
    least: int = 1


def _eagle(target: LanguageModel, vocabulary: int) -> Any:
    return eagle.init(target, jax.random.key(0), draft_vocabulary=_known(target, vocabulary))


def _parallel_eagle(target: LanguageModel, vocabulary: int) -> Any:
    return eagle.init_parallel(target, jax.random.key(0), draft_vocabulary=_known(target, vocabulary))


def _known(target: LanguageModel, vocabulary: int) -> int:
    if vocabulary > target.vocab_size:
        raise ValueError(f"VOCAB is {vocabulary:,}, the target has {target.vocab_size:,} tokens; pass fewer")
    return vocabulary


def _medusa(target: LanguageModel, heads: int) -> Any:
    # About the width that they have by default, and one that groups and meshes divide.
    width = _MULTIPLE * round(4 * target.module.config.width / (3 * _MULTIPLE))
    return medusa.init(target, jax.random.key(0), num_heads=heads, mlp_width=width)


def _dflash(target: LanguageModel, block: int) -> Any:
    """Returns the public layout: the target's layers, masks alone predict, and neither Markov nor confidence head."""
    config = target.module.config
    sizes = {field.name: getattr(config, field.name) for field in dataclasses.fields(TransformerConfig)}
    sizes |= {"num_layers": _DFLASH_LAYERS, "ropes": config.ropes[:1] * _DFLASH_LAYERS}
    sizes |= {"windows": (None,) * _DFLASH_LAYERS, "tied_head": False}
    capture = _evenly_spaced(config.num_layers)
    network = DFlashNetwork(
        DFlashConfig(**sizes, block_size=block, num_features=len(capture), first_predicts=False), target.dtype
    )
    params = network.init(jax.random.key(0), method="every_parameter")["params"]
    return dflash.DFlashHead.of(network, params, jnp.arange(target.vocab_size), capture, target.vocab_size)


def _tree(head: Any, k: int) -> Drafter:
    return dflash.DFlashTreeDrafter(head, nodes=k, top_k=_CHILDREN)


def _nodes(block: int) -> int:
    """Returns how many nodes a tree of a block has where nothing is said: no more than there are."""
    return min(_NODES, _CHILDREN + (block - 2) * _CHILDREN**2)


def _evenly_spaced(layers: int) -> tuple[int, ...]:
    """Returns the states that the public drafters read: after the second layer to the third from the end."""
    last = max(layers - 3, 1)
    after = {round(1 + index * (last - 1) / (_DFLASH_LAYERS - 1)) for index in range(_DFLASH_LAYERS)}
    return tuple(sorted(layer + 1 for layer in after))


HEAD_DRAFTS: Mapping[str, HeadDraft] = MappingProxyType(
    {
        "eagle": HeadDraft("VOCAB", 32000, _eagle, eagle.EagleDrafter, lambda _: 4, lambda k: k, once=("fuse",)),
        "p-eagle": HeadDraft("VOCAB", 32000, _parallel_eagle, eagle.EagleDrafter, lambda _: 7, lambda _: 1),
        "dflash": HeadDraft("BLOCK", 16, _dflash, dflash.DFlashDrafter, lambda block: block - 1, lambda _: 1, least=2),
        "dflash-tree": HeadDraft("BLOCK", 16, _dflash, _tree, _nodes, lambda _: 1, least=2),
        "medusa": HeadDraft("HEADS", 4, _medusa, medusa.MedusaDrafter, lambda heads: heads, lambda _: 1),
    }
)
# What drafts for a large target where nothing is said: one pass in place of several is the draft that a TPU wants.
OF_LARGE = "dflash"


def parse(draft: str) -> tuple[HeadDraft, int] | None:
    """Returns the head that a draft names and its number; `None` if it names none.

    Raises:
      ValueError: what follows the colon is no number, or one too small.

    Example:
      >>> from jaxspec.bench.compiled.heads import parse
      >>> parse("eagle:16000")[1], parse("ngram")
      (16000, None)
    """
    word, colon, argument = draft.partition(":")
    if (kind := HEAD_DRAFTS.get(word)) is None:
        return None
    if not colon:
        return kind, kind.default
    if not argument.isdecimal() or int(argument) < kind.least:
        raise ValueError(
            f"{word} takes a number from {kind.least} on as {kind.argument}, got {draft!r}; pass {word}:{kind.default}"
        )
    return kind, int(argument)


def head_drafter(
    draft: str, target: LanguageModel, plain: LanguageModel, k: int, pack: Callable[[Any], Any]
) -> Drafter:
    """Returns the drafter of a head that is on the target's mesh, split as it is.

    Args:
      draft: a name that `parse` knows.
      target: the model to draft for, placed on a mesh.
      plain: its shapes with weights as they are before they are quantized.
      k: drafted tokens a round.
      pack: stores the head's weights as the target's are.
    """
    found = parse(draft)
    assert found is not None
    kind, number = found
    head: Network = jax.eval_shape(lambda plain: pack(kind.make(plain, number)), plain)
    placement: Any = target.placement
    head = shard(head, placement.mesh, placement.rules)
    replicate = NamedSharding(placement.mesh, PartitionSpec())
    whole = lambda x: put(x, replicate) if x.sharding is None else x  # noqa: E731
    return kind.drafter(jax.tree.map(whole, head), k=k)
