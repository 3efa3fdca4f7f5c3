"""Pairs of tables for `pytest.mark.parametrize`: a few always, all of them under slow."""

import pytest

from jaxspec.testing.enumeration.tables import PAIR_NAMES, QUICK_PAIRS

PAIRS = [pytest.param(name, marks=[] if name in QUICK_PAIRS else [pytest.mark.slow]) for name in PAIR_NAMES]
