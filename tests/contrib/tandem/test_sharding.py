"""A tandem decoder split over two devices drafts what it drafts on one, and no vocabulary moves."""

import jaxspec
from jaxspec.testing.contracts.head import STEP, VOCAB, WIDE, SplitHeadContract
from tests._fixtures.tandem import random_head


class TestSplit(SplitHeadContract):
    head = random_head(WIDE, ids=range(0, VOCAB, STEP), scale=0.1)
    split = (
        *("head", "mix.kernel", "inject_1.key_value.kernel", "layer_1.attention.query.kernel"),
        *("layer_1.attention.key_value.kernel", "layer_1.mlp.gate_up.kernel"),
    )

    def drafter(self, head):
        return jaxspec.contrib.TandemDrafter(head, k=3)
