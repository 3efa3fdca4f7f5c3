"""Only what a separate call would have to the bit is taken from other texts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.model import ModelTraits
from jaxspec.core.pytree import register_dataclass
from jaxspec.decoding.slots import row_arguments
from jaxspec.serving.prefixes import Prefixes
from jaxspec.serving.prompt import Prompt
from jaxspec.testing.history_models import HistoryModel, history_model

WIDTH, CHUNK, IDS = 32, 4, [1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Described(HistoryModel):
    """A model with given traits."""

    own: ModelTraits = dataclasses.field(default=ModelTraits(), metadata={"static": True})
    traits = property(lambda self: self.own)


def prompt_of(ids, **traits):
    model = history_model(0)
    target = Described(model.a, model.b, ModelTraits(prompt_chunk=CHUNK, **traits))
    arguments = row_arguments(target, None, [ids], {"capacity": WIDTH, "max_new_tokens": 4})
    return Prompt("job", arguments, ids)


@pytest.mark.parametrize(
    ("traits", "slots", "valid"),
    [
        ({}, 1, 8),  # two whole chunks of the prompt
        ({"kernels": "native"}, 96, 12),
        ({"kernels": "native"}, 97, 8),
        ({"pass_tokens": 16}, 97, 12),
    ],
)
def test_entries_of_new_tokens_are_taken_where_passes_agree(traits, slots, valid):
    prompt = prompt_of(IDS, **traits)
    prompt.feed(9)
    row = prompt.finish().row
    cache = dataclasses.replace(row.cache, length=jnp.asarray([12], jnp.int32))  # two tokens later
    row = dataclasses.replace(row, context=dataclasses.replace(row.context, cache=cache))
    assert prompt.prefix(row, [*IDS, 0, 1], slots).valid == valid


def test_taken_chunks_are_not_fed():
    first, prefixes = prompt_of(IDS), Prefixes(2**20)
    first.feed(9)
    prefixes.add(first.prefix(first.feeding.row, IDS, 1))
    for _ in range(2):  # the text stays as it was
        second = prompt_of([*IDS[:9], 0, 0, 0, 0, 0])
        assert second.left == 4
        second.take_from(prefixes)
        assert (second.left, second.reused, second.feeding.row.cache.length.tolist()) == (2, 8, [8])
        second.feed(9)
        fresh = prompt_of(second.ids)
        fresh.feed(9)
        found, expected = (one.finish().row.cache for one in (second, fresh))
        assert found.length.tolist() == expected.length.tolist() == [13]
        for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_array_equal(x[..., :13], y[..., :13])


def test_a_recurrence_continues_no_text():
    assert not prompt_of(IDS, rewinds=False).continues
