"""Makes training data of existing texts."""

import dataclasses

import numpy as np

from jaxspec.training.dataset import Batch
from tests._fixtures import tiny


@dataclasses.dataclass(frozen=True)
class Written:
    """Texts that the target wrote; each batch is of some of them."""

    texts: np.ndarray

    def token_counts(self):
        return np.bincount(self.texts.ravel(), minlength=tiny.VOCAB)

    def batches(self, *, batch_tokens, seed, devices):
        return dataclasses.replace(self)

    def batch(self, step):
        tokens = self.texts[np.random.default_rng(step).choice(len(self.texts), 24, replace=False)]
        answer = np.broadcast_to(np.arange(tokens.shape[1])[None] >= 3, tokens.shape)
        return Batch(tokens, np.full(24, tokens.shape[1], np.int32), answer)
