"""A small decoder with its own cache, as other projects write them: functions, and one index for all rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

VOCAB, WIDTH, LAYERS, CONTEXT = 29, 16, 2, 96
KINDS = ("shared", "per_row", "scalar")


@dataclasses.dataclass(frozen=True)
class Call:
    """`flaw` is what it does wrong: "mask", "positions" or "index" is ignored, "states" are not returned, or all
    logits but the "last"; passes of several tokens, a "chunk", count slots from the first; those of many ("flash")
    ignore the mask; a window goes by "slots"; logits are "nan". Not wrong: tokens that are "excluded"."""

    kind: str = "shared"
    flaw: str | None = None

    def __call__(self, params, tokens, cache, fed):
        causal = jnp.arange(tokens.shape[1])
        index = jnp.zeros_like(fed.index) if self.flaw == "index" else fed.index
        positions = (
            jnp.broadcast_to(_column(index) + causal[None], tokens.shape) if self.flaw == "positions" else fed.positions
        )
        slots = jnp.arange(cache[0]["keys"].shape[1])
        mask = fed.mask
        if mask is None or self.flaw == "mask" or (self.flaw == "flash" and tokens.shape[1] > 8):
            last = _column(fed.index) + causal[None]
            mask = jnp.broadcast_to(slots[None, None] <= last[:, :, None], (*tokens.shape, len(slots)))
        if self.flaw == "chunk" and tokens.shape[1] > 1:
            mask = mask & (slots[None, None] <= causal[None, :, None])
        if self.flaw == "slots":
            mask = mask & (jnp.abs(slots[None, None] - _column(index)[..., None] - causal[None, :, None]) < 80)
        x = params["embedding"][tokens] + params["position"][positions]
        written, states = [], []
        for weights, held in zip(params["layers"], cache, strict=True):
            states.append(x)
            query, *fresh = (jnp.einsum("btd,dh->bth", x, weights[name]) for name in ("query", "keys", "values"))
            held = {name: _write(held[name], one, index) for name, one in zip(("keys", "values"), fresh, strict=True)}
            scores = jnp.where(mask, jnp.einsum("bth,bsh->bts", query, held["keys"]), -1e9)
            x = x + jnp.einsum("bts,bsh->bth", jax.nn.softmax(scores, axis=-1), held["values"])
            written.append({**held, "end": jnp.asarray(index + tokens.shape[1], jnp.int32)})
        states.append(x)
        logits = jnp.einsum("btd,vd->btv", x, params["embedding"])
        logits = logits * jnp.nan if self.flaw == "nan" else logits
        logits = logits[:, -1] if self.flaw == "last" else logits
        if self.flaw in ("excluded", "mask"):  # as the padding of a vocabulary is
            logits = logits.at[..., -1].set(-jnp.inf if self.flaw == "excluded" else -1e9)
        if fed.capture and self.flaw != "states":
            return logits, written, tuple(states[number] for number in fed.capture)
        return logits, written


def _column(index):
    return index[:, None] if jnp.ndim(index) else index[None, None]


def _write(held, fresh, index):
    if jnp.ndim(index):
        return jax.vmap(lambda x, new, at: jax.lax.dynamic_update_slice(x, new, (at, 0)))(held, fresh, index)
    return jax.lax.dynamic_update_slice(held, fresh, (0, index, 0))


@dataclasses.dataclass(frozen=True)
class Empty:
    """`leaf` is one that cannot be cut: a "ring" of 40 slots, a "state", "longer" values, a "pair" of no rows.

    "capped" has no more slots than positions.
    """

    kind: str = "shared"
    leaf: str | None = None

    def __call__(self, batch, capacity):
        assert self.leaf != "capped" or capacity <= CONTEXT + 128
        slots = min(capacity, 40) if self.leaf == "ring" else 40 if self.leaf == "state" else capacity
        slots += 5 * (self.leaf == "longer")
        index = jnp.zeros(batch if self.kind == "per_row" else (), jnp.int32)
        index = jnp.zeros(2, jnp.int32) if self.leaf == "pair" else index
        keys, values = jnp.zeros((batch, capacity, WIDTH)), jnp.zeros((batch, slots, WIDTH))
        return [{"keys": keys, "values": values, "end": index} for _ in range(LAYERS)]


def params(seed=0, scale=0.6):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * scale, jnp.float32)
    layers = [{name: draw(WIDTH, WIDTH) for name in ("query", "keys", "values")} for _ in range(LAYERS)]
    return {"embedding": draw(VOCAB, WIDTH), "position": draw(CONTEXT, WIDTH), "layers": layers}


@dataclasses.dataclass(frozen=True)
class Parts:
    """The parts that heads need; the final norm is the identity."""

    config: object
    hidden_sizes: tuple = (LAYERS, WIDTH)

    def embed(self, params, tokens):
        return params["embedding"][tokens]

    def normalize(self, params, hidden):
        return hidden

    def head(self, params):
        return params["embedding"]
