"""An EAGLE head split over two devices drafts what it drafts on one, in chains and trees."""

import pytest

import jaxspec
from jaxspec.testing.collectives import collectives
from jaxspec.testing.contracts.head import STEP, VOCAB, WIDE, SplitHeadContract, on_two_devices
from tests._fixtures.eagle import eagle_head


class TestChain(SplitHeadContract):
    head = eagle_head(0, capture=(0, 1), ids=range(0, VOCAB, STEP), target=WIDE)
    split = ("head", "fuse.kernel", "attention.query.kernel", "attention.key_value.kernel", "mlp.gate_up.kernel")
    tokens = 8

    def drafter(self, head):
        return jaxspec.EagleDrafter(head, k=3)

    @pytest.mark.slow
    def test_distributions_of_a_chain_are_sent_together(self):
        """No vocabulary moves with each draft."""
        program = on_two_devices(self.head, self.drafter, self.tokens)[-1]
        of_a_draft = [line for line in program.splitlines() if "/further_drafts/" in line]
        assert of_a_draft
        assert not [moved for moved in collectives("\n".join(of_a_draft)) if VOCAB // STEP in moved.shape]


@pytest.mark.slow
class TestTree(SplitHeadContract):
    head, split, tokens = TestChain.head, TestChain.split, TestChain.tokens
    least_accepted = 0  # of a head with random weights

    def drafter(self, head):
        return jaxspec.drafters.DynamicTreeDrafter(head, top_k=2, depth=2, nodes=4)
