"""Tiny draft heads that their own packages made and ran (`tests/golden/heads`), drafting the two recorded rounds."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

import jaxspec

HEADS = pathlib.Path(__file__).parents[1] / "golden" / "heads"
NAMES = sorted(path.parent.name for path in HEADS.glob("*/reference.npz"))


@functools.cache
def target(name):
    return jaxspec.load(HEADS / name, dtype="float32")


@functools.cache
def recorded(name) -> dict:
    with np.load(HEADS / name / "reference.npz") as arrays:
        return dict(arrays)


def of(name, **options):
    """The target of a head and the head."""
    model = target(str(recorded(name)["target"]))
    return model, jaxspec.load_head(HEADS / name, model, **options)


def config_of(name) -> dict:
    return json.loads((HEADS / name / "config.json").read_text())


def changed(name, folder, settings=(), tensors=None) -> pathlib.Path:
    """A copy of a head's folder with other settings, and with the tensors that `tensors` returns for its own."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(name) | dict(settings)))
    if tensors is None:
        shutil.copy(HEADS / name / "model.safetensors", folder)
    else:
        save_file(tensors(load_file(HEADS / name / "model.safetensors")), folder / "model.safetensors")
    return folder


class NoNoise(jaxspec.core.RoundKeys):
    """Random numbers of a round in which the draws are the most probable tokens."""

    def __init__(self, batch):
        object.__setattr__(self, "batch", batch)

    def of_draft(self, index):
        return self

    def shared(self, count, vocab_size):
        return self

    def draft_noise(self, offset, vocab_size, ids=None):
        return jnp.zeros((self.batch, vocab_size if ids is None else ids.shape[0]), jnp.float32)


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forced(jaxspec.Verifier):
    """Accepts one draft regardless of the target, and appends `token`; keeps every proposal in `seen`."""

    token: int = dataclasses.field(metadata={"static": True})
    lossless = False
    seen = []  # noqa: RUF012 (filled by callbacks)

    def rng(self, keys, length):
        return NoNoise(length.shape[0])

    def verify(self, rng, proposal, target_log_probs):
        log_probs = () if proposal.log_probs is None else (proposal.log_probs[0],)
        keep = lambda *x: self.seen.append([np.array(each) for each in x])
        jax.debug.callback(keep, proposal.tokens[0], proposal.valid[0], *log_probs)
        batch = proposal.tokens.shape[0]
        return jaxspec.core.Verdict(jnp.ones(batch, jnp.int32), jnp.full(batch, self.token, jnp.int32))

    def verify_greedy(self, rng, proposal, target_tokens):
        return self.verify(rng, proposal, None)


def rounds(drafter, name, count=2):
    """The tokens that a drafter drafts in the recorded rounds, and their log-probabilities, `None` for certain ones.

    The second round continues the first one, so that it starts from the drafter's own caches, unless another token was
    drafted than in the recorded text.
    """
    record, found = recorded(name), []
    model, step = target(str(record["target"])), jaxspec.jit_step()
    texts = [record[f"round{number}_context"] for number in (1, 2)]
    sampling, width = jaxspec.Sampling(temperature=1.0), len(texts[1])
    verifier = Forced(int(texts[1][-1]))

    def start(text):
        prompt = np.zeros((1, width), np.int32)
        prompt[0, : len(text)] = text
        options = {"prompt_length": [len(text)], "max_new_tokens": 20, "key": jax.random.key(0), "sampling": sampling}
        return jaxspec.init(model, drafter, prompt, **options)

    state = start(texts[0])
    for text in texts[:count]:
        if state.tokens[0, : int(state.length[0])].tolist() != text.tolist():
            state = start(text)
        Forced.seen.clear()
        state, _ = step(model, drafter, verifier, state, lossy=True)
        jax.block_until_ready(state.tokens)
        jax.effects_barrier()
        ((tokens, valid, *log_probs),) = Forced.seen
        drafts = int(valid.sum())
        found.append((tokens[:drafts], log_probs[0][:drafts] if log_probs else None))
    return found


def expected(name, number):
    """The recorded drafts of a round and their log-probabilities."""
    record = recorded(name)
    logits = record[f"round{number}_logits"].astype(np.float64)
    return record[f"round{number}_tokens"], np.asarray(jax.nn.log_softmax(logits))


def distance(found, name) -> float:
    """The largest difference of log-probabilities above -40, over all rounds; infinite if the numbers of drafts differ.

    It is relative to a tenth of the largest logit, if that is above 10: these are float32.
    """
    worst = 0.0
    for number, (_, log_probs) in enumerate(found, 1):
        tokens, want = expected(name, number)
        if len(log_probs) != len(tokens):
            return float("inf")
        logits = recorded(name)[f"round{number}_logits"]
        size = np.abs(np.where(np.isfinite(logits), logits, 0)).max()
        with np.errstate(invalid="ignore"):
            away = np.abs(np.where(want > -40, log_probs - want, 0)).max()
        outside = np.exp(np.where(want > -40, -np.inf, log_probs)).sum(-1).max()
        worst = max(worst, away / max(1, size / 10), outside)
    return float(worst)
