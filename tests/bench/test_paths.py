"""The longest path through the machine code that libtpu writes."""

import pytest

from jaxspec.bench.compiled.paths import longest_path

# Shortened from what libtpu writes of a kernel: a branch skips words up to 6, another from 7 to 9, and each stretch has
# one inside. A word may take several lines.
BOTH = """control target key start
     0   :  { %s1 = smov 0 }
   0x1   :  { %p1_p0 = scmp.gt.s32.totalorder %s9_s2, 0  ;;  %p2_p1 = scmp.OTHER.s32.totalorder %s9_s2, 0 }
   0x2   :  { %20 = sbr.rel (%p1_p0) target = $region4 }
   0x3   :  {}
   0x4 PB: > { %v1 = vld [vmem:[%s1] sm:$0xff]  ;;  /* a word of
several lines */ } /* Start region 3 */
   0x5   : > { %p3_p2 = scmp.lt.s32.totalorder (!%p1_p0), %s9_s2, 7 }
   0x6   : > { %21 = sbr.rel (%p3_p2) target = $region4 } /* End region 3 */
   0x7 PF: > { %22 = sbr.rel (%p2_p1) target = $region8 } /* Start/End empty region 4 :: Start region 5 */
   0x8   : > { %23 = sbr.rel (%p3_p2) target = $region7 }
   0x9   : > { %v2 = vld [vmem:[%s1] sm:$0xff] }
   0xa PF: > { %24 = sbr.rel (!%p1_p0) target = $region5 } /* Start region 7 :: Start/End empty region 8 */
   0xb   : > { %v3 = vld [vmem:[%s1] sm:$0xff] }
"""


def code(other):
    return BOTH.replace("OTHER", other)


def test_of_stretches_that_exclude_each_other_the_longer_counts():
    """Words 2 to 6 run where `s9` is at most 0, and 7 to 9 where it is above."""
    assert longest_path(code("le")) == 12 - 3


@pytest.mark.parametrize("other", ["lt", "gt", "ge"])
def test_others_may_both_run(other):
    assert longest_path(code(other)) == 12


def test_a_negated_branch_is_skipped_on_the_opposite():
    assert longest_path(code("gt").replace("(%p2_p1) target", "(!%p2_p1) target")) == 12 - 3


def test_numbers_must_be_the_same():
    assert longest_path(code("le").replace("le.s32.totalorder %s9_s2, 0", "le.s32.totalorder %s9_s2, 1")) == 12


def test_a_branch_back_and_no_branch_skip_nothing():
    text = "\n".join(line for line in code("le").splitlines() if "sbr.rel (%p" not in line)
    assert "sbr.rel" in text and longest_path(text) == 8
