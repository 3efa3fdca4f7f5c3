"""A small decoder with a cache of its own, as other projects write them: functions, and one index for all rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

VOCAB, WIDTH, LAYERS, CONTEXT = 29, 16, 2, 96
KINDS = ("shared", "per_row", "scalar")


@dataclasses.dataclass(frozen=True)
class Call:
    """`flaw` is what it does wrong: "mask", "positions" or "index" is ignored, "states" are not returned,
    or passes of several tokens, a "chunk", count slots from the first."""

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
        if mask is None or self.flaw == "mask":
            last = _column(fed.index) + causal[None]
            mask = jnp.broadcast_to(slots[None, None] <= last[:, :, None], (*tokens.shape, len(slots)))
        if self.flaw == "chunk" and tokens.shape[1] > 1:
            mask = mask & (slots[None, None] <= causal[None, :, None])
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
    """`leaf` is one that cannot be cut: a "ring" of 40 slots, or a "state"."""

    kind: str = "shared"
    leaf: str | None = None

    def __call__(self, batch, capacity):
        slots = min(capacity, 40) if self.leaf == "ring" else 40 if self.leaf == "state" else capacity
        index = jnp.zeros(batch if self.kind == "per_row" else (), jnp.int32)
        keys, values = jnp.zeros((batch, capacity, WIDTH)), jnp.zeros((batch, slots, WIDTH))
        return [{"keys": keys, "values": values, "end": index} for _ in range(LAYERS)]


def params(seed=0, scale=0.6):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * scale, jnp.float32)
    layers = [{name: draw(WIDTH, WIDTH) for name in ("query", "keys", "values")} for _ in range(LAYERS)]
    return {"embedding": draw(VOCAB, WIDTH), "position": draw(CONTEXT, WIDTH), "layers": layers}
