"""What a contract says to who inherits it and leaves something out."""

import pytest

from tests.contracts import DrafterContract
from tests.contracts.tree_drafter import TreeDrafterContract


@pytest.mark.parametrize(
    ("contract", "ask", "said"),
    [
        (DrafterContract, lambda own: own.guess([1, 2], 0), r"Own does not say .*give it guess\(text, offset\)"),
        (
            TreeDrafterContract,
            lambda own: own.expected([1, 2], [], 0),
            r"Own does not say .*give it expected\(text, before, node\)",
        ),
    ],
)
def test_a_contract_says_what_its_author_must_write(contract, ask, said):
    with pytest.raises(NotImplementedError, match=said):
        ask(type("Own", (contract,), {})())
