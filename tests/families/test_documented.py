"""The table of families in the docs is that of the code, and published checkpoints have the sizes that it says."""

import math

import pytest

from jaxspec.families.table import FAMILIES, SHAPES, find_family, shape
from tests._fixtures import family_table


def test_the_page_has_the_table():
    """`python -m tests._fixtures.family_table` writes it."""
    assert family_table.on_page() == family_table.table()


def test_every_family_is_compared_and_named():
    kinds = {family.model_type for family in FAMILIES}
    assert kinds == {kind for kind, _ in family_table.CASES.values()} == family_table.NAMES.keys()
    assert family_table.PUBLISHED.keys() == SHAPES.keys()


@pytest.mark.parametrize(("name", "count"), family_table.PUBLISHED.items())
def test_published_sizes(name, count):
    """Adds up the tensors of the checkpoint."""
    config, family = shape(name), find_family(SHAPES[name])
    sources = [source for mapping in family.map_params(config) for source in mapping.sources]
    assert sum(math.prod(size) for _, size in sources) == count
