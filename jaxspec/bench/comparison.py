"""Lists what a run measures: the model as it is loaded, and its plain arrays where peers are to have the same."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxspec.bench.peers.panel import Panel, open_panel
from jaxspec.bench.peers.table import PEERS, Peer
from jaxspec.bench.peers.weights import Arrays, Files, Weights
from jaxspec.bench.setting import Setting
from jaxspec.checkpoints.load import load, locate
from jaxspec.nn.language_model import LanguageModel
from jaxspec.nn.network import packed_weights
from jaxspec.training.prompts import Conversation

FILE = "the file as it is"
# Tokens of a turn that a chat template adds, and of a system message of its own.
_TEMPLATE = 256


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Names the weights that jaxspec and the peers answer with.

    Attributes:
      weights: what they are called in tables; empty where they are those of the model, and nothing else is measured.
      peers: those that are asked, by name.
      files: the target's and the draft model's, which peers read as they are; `None` where plain arrays are written.
      loaded: whether jaxspec answers with the model as it is loaded, and not with plain arrays.
      batches: numbers of requests that are decoded together.
    """

    weights: str
    peers: Mapping[str, Peer]
    files: Files | None
    loaded: bool
    batches: tuple[int, ...]


def comparisons(setting: Setting, loaded: LanguageModel) -> list[Comparison]:
    """Returns what a run measures, in order.

    Peers that read the target's file answer with it beside jaxspec's model as it is loaded; then all answer with the
    same plain arrays, one request at a time.

    Args:
      setting: names the model and the peers.
      loaded: the model as it is loaded.
    """
    installed = {name: PEERS[name] for name in setting.against if PEERS[name].versions() is not None}
    file = locate(setting.model) if any(peer.reads for peer in installed.values()) else Path()
    readers = {name: peer for name, peer in installed.items() if peer.reads and file.name.endswith(peer.reads)}
    if not readers and not (installed and packed_weights(loaded)):
        return [Comparison("", installed, None, True, setting.batches)]
    draft = locate(setting.against_draft) if readers and setting.against_draft is not None else None
    read = draft is not None and all(draft.name.endswith(peer.reads) for peer in readers.values())
    files = Files(file, draft if read else None)
    as_it_is = Comparison(FILE, readers, files, True, setting.batches)
    if setting.file_only and readers:
        return [as_it_is]
    return [as_it_is, Comparison(f"dequantized to {loaded.dtype.name}", installed, None, False, (1,))]


def open_peers(
    comparison: Comparison, setting: Setting, target: LanguageModel, kernels: str, questions: Sequence[Conversation]
) -> contextlib.AbstractContextManager[Panel]:
    """Opens the peers of a comparison.

    Args:
      comparison: names the peers, and the files they read, if any.
      setting: names the draft model, if any.
      target: as it is read; where there are no files its arrays are written.
      kernels: those that jaxspec answers with: with bfloat16 weights the peers get these, too.
      questions: those of the run.
    """
    weights: Weights | None = comparison.files
    if weights is None:
        draft = None
        if comparison.peers and setting.against_draft:
            draft = load(setting.against_draft, dtype=setting.dtype, weights="dequantized")
        weights = Arrays(target, draft, "bfloat16" if kernels == "native-bfloat16" else target.dtype.name)
    # A token is a byte at least, but for those of the template.
    longest = max(sum(len(text.encode()) for text in one.texts()) for one in questions)
    context = longest + max(len(one.turns) for one in questions) * (setting.max_new_tokens + _TEMPLATE)
    context = context if target.context_length is None else min(target.context_length, context)
    stop = () if target.tokenizer is None else target.tokenizer.eos_token_ids
    return open_panel(comparison.peers, weights, stop=stop, context=context)
