"""A recipe small enough to train in a second, and conversations to train it on, without files."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.ops.matmul import project
from jaxspec.testing.history_models import HistoryModel
from jaxspec.training import losses
from jaxspec.training.dataset import Batch
from jaxspec.training.recipe import Recipe
from tests._fixtures import tiny


@dataclasses.dataclass(frozen=True)
class Bigrams(Recipe):
    """Guesses from the last token alone."""

    divergence: losses.Divergence = losses.ForwardKL()
    capture: tuple[int, ...] = (1,)

    def init(self, key, target, token_counts):
        return {"table": jnp.zeros((target.vocab_size, target.vocab_size), jnp.float32)}

    def loss(self, params, target, batch, features, key):
        (middle,) = features.hidden
        assert middle.shape == features.last.shape
        logits = project(target.normalize(features.last), target.head).astype(jnp.float32)
        wanted = jax.nn.log_softmax(logits[:, :-1])
        guessed = jax.nn.log_softmax(params["table"][batch.tokens[:, :-1]].astype(jnp.float32))
        mean = lambda values: losses.masked_mean(values, batch.answer[:, 1:])
        return mean(self.divergence(wanted, guessed)), {"acceptance": mean(losses.acceptance(wanted, guessed))}

    def drafter(self, params, target, token_counts):
        return jaxspec.ModelDrafter(HistoryModel(params["table"], jnp.zeros_like(params["table"])), k=2)

    def save(self, params, target, token_counts, path):
        path.mkdir()
        np.save(path / "table.npy", params["table"])


@dataclasses.dataclass(frozen=True)
class Conversations:
    """Random ones, each of a question and an answer."""

    width: int = 16
    vocab: int = tiny.VOCAB

    def token_counts(self):
        return np.ones(self.vocab, np.int64)

    def batches(self, *, batch_tokens, seed, devices):
        rows = batch_tokens // self.width
        assert rows % devices == 0
        return _Batches(self, rows, seed)


@dataclasses.dataclass(frozen=True)
class _Batches:
    data: Conversations
    rows: int
    seed: int

    def batch(self, step):
        rng = np.random.default_rng([self.seed, step])
        at = np.arange(self.data.width)[None]
        length = rng.integers(6, self.data.width + 1, self.rows).astype(np.int32)
        tokens = rng.integers(0, self.data.vocab, (self.rows, self.data.width))
        answer = (at >= 3) & (at < length[:, None])
        return Batch(tokens.astype(np.int32), length, answer)
