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
from jaxspec.heads import dflash, eagle, medusa, untrained
from jaxspec.heads.dflash.network import DFlashConfig, DFlashNetwork
from jaxspec.heads.dflash.selector import Convolution, Selector
from jaxspec.heads.eagle.head import default_capture, layer_for
from jaxspec.heads.eagle.network import ParallelEagleLayers
from jaxspec.heads.eagle.parallel import ParallelEagleHead
from jaxspec.nn.config import TransformerConfig
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import Network
from jaxspec.sharding.params import shard
from jaxspec.sharding.placement import put

# Layers of the public drafters of Qwen3-4B and 8B (z-lab/Qwen3-4B-DFlash-b16).
_DFLASH_LAYERS = 5
# Ranks of the Markov heads of deepseek-ai/dspark_qwen3_8b_block7, and the selector of z-lab's DFlash2 heads.
_MARKOV_RANK = 256
_SELECTOR, _CONVOLUTION = Selector(rank=256, top_k=16), Convolution(taps=2, group=16)
# Layers of amazon's P-EAGLE heads, and the most drafts that they were trained for.
_PARALLEL_LAYERS, _PARALLEL_DRAFTS = 4, 8
_MULTIPLE = 256
# Default size of a tree: 64 tokens with the last committed one.
_NODES, _CHILDREN = 63, 8


@dataclasses.dataclass(frozen=True)
class HeadDrafter:
    """Describes a head that a command names without weights: `name` or `name:number`.

    Attributes:
      argument: name of the number, for the command's help; empty if it takes none.
      default: default of the number.
      make: function from a target and the number to the head; it is traced, not run.
      drafter: function that makes the drafter of a head with `k` drafts.
      drafts: function from the number to the default number of drafts per round.
      passes: function from `k` to the number of the head's passes per round.
      once: parameters that a round reads once, regardless of its passes.
      tables: parameters of which a round reads only the rows of its tokens.
      least: smallest valid number.
    """

    argument: str
    default: int
    make: Callable[[LanguageModel, int], Any]
    drafter: Callable[..., Drafter]
    drafts: Callable[[int], int]
    passes: Callable[[int], int]
    once: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    least: int = 1

    def usage(self, name: str) -> str:
        """Returns how a command names it, with its number if it takes one."""
        return f"{name}[:{self.argument}]" if self.argument else name


def _eagle(target: LanguageModel, vocabulary: int) -> Any:
    return eagle.init(target, jax.random.key(0), draft_vocabulary=_known(target, vocabulary))


def _known(target: LanguageModel, vocabulary: int) -> int:
    if vocabulary > target.vocab_size:
        raise ValueError(f"VOCAB is {vocabulary:,}, the target has {target.vocab_size:,} tokens; pass fewer")
    return vocabulary


def _parallel_eagle(target: LanguageModel, vocabulary: int) -> Any:
    """Returns the public layout: EAGLE-3's first layer, a decoder's others, a mask's state, and its own embedding."""
    capture = default_capture(target)
    one = layer_for(target, capture, _known(target, vocabulary))
    sizes = {"num_layers": _PARALLEL_LAYERS, "ropes": one.config.ropes * _PARALLEL_LAYERS}
    config = dataclasses.replace(one.config, **sizes, windows=(None,) * _PARALLEL_LAYERS)
    module = ParallelEagleLayers(config, one.features, target.dtype)
    ids = None if vocabulary == target.vocab_size else jnp.arange(vocabulary, dtype=jnp.int32)
    embedding = jnp.zeros((target.vocab_size, config.width), target.dtype)
    blank = ParallelEagleHead(module, {}, ids, embedding, target.vocab_size, capture)
    state, features = (jnp.zeros((1, 1, size), target.dtype) for size in (config.width, module.features))
    params = untrained.initial(module, jax.random.key(0), state, features, blank.init_cache(1, 0), method="everything")
    return dataclasses.replace(blank, params=untrained.in_dtype(params, target.dtype))


def _mtp(target: LanguageModel, _: int) -> Any:
    """Returns speculators' layout, which has an embedding at a text's first position too."""
    head = eagle.init_mtp(target, jax.random.key(0))
    return dataclasses.replace(head, module=dataclasses.replace(head.module, zero_first=False))


def _medusa(target: LanguageModel, heads: int) -> Any:
    # About their default width, rounded so that groups and meshes divide it.
    width = _MULTIPLE * round(4 * target.module.config.width / (3 * _MULTIPLE))
    return medusa.init(target, jax.random.key(0), num_heads=heads, mlp_width=width)


def _dflash(target: LanguageModel, block: int) -> Any:
    """Returns the public layout: the target's layers, predictions only at masks, no Markov or confidence head."""
    return _block_head(target, block, first_predicts=False)


def _dflash2(target: LanguageModel, block: int) -> Any:
    """Returns the public layout: DFlash's, with convolutions, and a selector among the best tokens of each place."""
    selector = dataclasses.replace(_SELECTOR, tokens=target.vocab_size)
    return _block_head(target, block, first_predicts=False, correction=selector, convolution=_CONVOLUTION)


def _dspark(target: LanguageModel, block: int) -> Any:
    """Returns the public layout: DFlash's, predictions at the first place too, a Markov and a confidence head."""
    return _block_head(target, block, markov_rank=_MARKOV_RANK, confidence="place and token")


def _block_head(target: LanguageModel, block: int, **parts: Any) -> Any:
    config = target.module.config
    sizes = {field.name: getattr(config, field.name) for field in dataclasses.fields(TransformerConfig)}
    sizes |= {"num_layers": _DFLASH_LAYERS, "ropes": config.ropes[:1] * _DFLASH_LAYERS}
    sizes |= {"windows": (None,) * _DFLASH_LAYERS, "tied_head": False}
    capture = _evenly_spaced(config.num_layers)
    network = DFlashNetwork(DFlashConfig(**sizes, block_size=block, num_features=len(capture), **parts), target.dtype)
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
    """Returns the layers whose states the public drafters read: from the second to the third from the end.

    A shallow target's repeat, so that the head has its size on a deep one.
    """
    last = max(layers - 3, 1)
    return tuple(round(1 + index * (last - 1) / (_DFLASH_LAYERS - 1)) + 1 for index in range(_DFLASH_LAYERS))


HEAD_DRAFTERS: Mapping[str, HeadDrafter] = MappingProxyType(
    {
        "eagle": HeadDrafter("VOCAB", 32000, _eagle, eagle.EagleDrafter, lambda _: 4, lambda k: k, once=("fuse",)),
        "dflash": HeadDrafter(
            "BLOCK", 16, _dflash, dflash.DFlashDrafter, lambda block: block - 1, lambda _: 1, least=2
        ),
        "dflash2": HeadDrafter(
            "BLOCK",
            8,
            _dflash2,
            dflash.DFlashDrafter,
            lambda block: block - 1,
            lambda _: 1,
            tables=("predecessors", "successors"),
            least=2,
        ),
        "dspark": HeadDrafter(
            "BLOCK",
            7,
            _dspark,
            dflash.DFlashDrafter,
            lambda block: block,
            lambda _: 1,
            tables=("markov_before",),
        ),
        "dflash-tree": HeadDrafter("BLOCK", 16, _dflash, _tree, _nodes, lambda _: 1, least=2),
        "p-eagle": HeadDrafter(
            "VOCAB", 32000, _parallel_eagle, eagle.EagleDrafter, lambda _: _PARALLEL_DRAFTS, lambda _: 1
        ),
        "mtp": HeadDrafter("", 1, _mtp, eagle.EagleDrafter, lambda _: 4, lambda k: k),
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
    if not kind.argument:
        raise ValueError(f"{word} takes no number, got {drafter!r}; pass {word}")
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
