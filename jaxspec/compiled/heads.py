"""Makes drafters of heads from their sizes, without weights, for compilation.

Their weights are shapes, with the dtype and placement of the target's.
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

# Layers of the public drafters of Qwen3-4B and 8B (z-lab/Qwen3-4B-DFlash-b16).
_DFLASH_LAYERS = 5
_MULTIPLE = 256
# Default size of a tree: 64 tokens with the last committed one.
_NODES, _CHILDREN = 63, 8


@dataclasses.dataclass(frozen=True)
class HeadDrafter:
    """Describes a head that a command names without weights: `name` or `name:number`.

    Attributes:
      argument: name of the number, for the command's help.
      default: default of the number.
      make: function from a target and the number to the head; it is traced, not run.
      drafter: function that makes the drafter of a head with `k` drafts.
      drafts: function from the number to the default number of drafts per round.
      passes: function from `k` to the number of the head's passes per round.
      once: parameters that a round reads once, regardless of its passes.
      least: smallest valid number.
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


def _known(target: LanguageModel, vocabulary: int) -> int:
    if vocabulary > target.vocab_size:
        raise ValueError(f"VOCAB is {vocabulary:,}, the target has {target.vocab_size:,} tokens; pass fewer")
    return vocabulary


def _medusa(target: LanguageModel, heads: int) -> Any:
    # About their default width, rounded so that groups and meshes divide it.
    width = _MULTIPLE * round(4 * target.module.config.width / (3 * _MULTIPLE))
    return medusa.init(target, jax.random.key(0), num_heads=heads, mlp_width=width)


def _dflash(target: LanguageModel, block: int) -> Any:
    """Returns the public layout: the target's layers, predictions only at masks, no Markov or confidence head."""
    config = target.module.config
    sizes = {field.name: getattr(config, field.name) for field in dataclasses.fields(TransformerConfig)}
    sizes |= {"num_layers": _DFLASH_LAYERS, "ropes": config.ropes[:1] * _DFLASH_LAYERS}
    sizes |= {"windows": (None,) * _DFLASH_LAYERS, "tied_head": False}
    capture = _evenly_spaced(config.num_layers)
    network = DFlashNetwork(
        DFlashConfig(**sizes, block_size=block, num_features=len(capture), first_predicts=False), target.dtype
    )
    params = network.init(jax.random.key(0), method="every_parameter")["params"]
    return dflash.DFlashHead.of(
        network, params, jnp.arange(target.vocab_size, dtype=jnp.int32), capture, target.vocab_size
    )


def _tree(head: Any, k: int) -> Drafter:
    return dflash.DFlashTreeDrafter(head, nodes=k, construction=dflash.Beam(_CHILDREN))


def _nodes(block: int) -> int:
    """Returns the default number of nodes in a tree of a block, at most all of its alternatives."""
    return min(_NODES, _CHILDREN + (block - 2) * _CHILDREN**2)


def _evenly_spaced(layers: int) -> tuple[int, ...]:
    """Returns the layers whose states the public drafters read: from the second to the third from the end."""
    last = max(layers - 3, 1)
    after = {round(1 + index * (last - 1) / (_DFLASH_LAYERS - 1)) for index in range(_DFLASH_LAYERS)}
    return tuple(sorted(layer + 1 for layer in after))


HEAD_DRAFTERS: Mapping[str, HeadDrafter] = MappingProxyType(
    {
        "eagle": HeadDrafter("VOCAB", 32000, _eagle, eagle.EagleDrafter, lambda _: 4, lambda k: k, once=("fuse",)),
        "dflash": HeadDrafter(
            "BLOCK", 16, _dflash, dflash.DFlashDrafter, lambda block: block - 1, lambda _: 1, least=2
        ),
        "dflash-tree": HeadDrafter("BLOCK", 16, _dflash, _tree, _nodes, lambda _: 1, least=2),
        "medusa": HeadDrafter("HEADS", 4, _medusa, medusa.MedusaDrafter, lambda heads: heads, lambda _: 1),
    }
)
# The default drafter of a large target: TPUs favor one drafting pass over several.
OF_LARGE = "dflash"


def parse(drafter: str) -> tuple[HeadDrafter, int] | None:
    """Returns the head that a drafter's name stands for and its number; `None` for other names.

    Raises:
      ValueError: if the part after the colon is not a number, or too small.

    Example:
      >>> from jaxspec.compiled.heads import parse
      >>> parse("eagle:16000")[1], parse("ngram")
      (16000, None)
    """
    word, colon, argument = drafter.partition(":")
    if (kind := HEAD_DRAFTERS.get(word)) is None:
        return None
    if not colon:
        return kind, kind.default
    if not argument.isdecimal() or int(argument) < kind.least:
        example = f"{word}:{kind.default}"
        raise ValueError(f"{word} takes a {kind.argument} of at least {kind.least}, got {drafter!r}; pass {example}")
    return kind, int(argument)


def head_drafter(
    drafter: str, target: LanguageModel, plain: LanguageModel, k: int, pack: Callable[[Any], Any]
) -> Drafter:
    """Returns the drafter of a head that is split over the target's mesh, like the target.

    Args:
      drafter: name that `parse` accepts.
      target: model to draft for, placed on a mesh.
      plain: shapes of the target before quantization.
      k: number of drafted tokens per round.
      pack: function that stores the head's weights in the format of the target's.
    """
    found = parse(drafter)
    assert found is not None
    kind, number = found
    head: Network = jax.eval_shape(lambda plain: pack(kind.make(plain, number)), plain)
    placement: Any = target.placement
    head = shard(head, placement.mesh, placement.rules)
    replicate = NamedSharding(placement.mesh, PartitionSpec())
    whole = lambda x: put(x, replicate) if x.sharding is None else x  # noqa: E731
    return kind.drafter(jax.tree.map(whole, head), k=k)
