"""Reading the machine code that the TPU compiler writes."""

import os

import pytest

from jaxspec.compiled.bracket import Code
from jaxspec.compiled.hlo import Program
from tests.benchmarks import machine_code
from tests.benchmarks.machine_code import Written, longest_path, of_instructions, read

# Shortened from what libtpu writes.
BUNDLES = """     0   :  { %s1 = smov 0 } /* entry bundle: %fusion.1 = fusion(%a) */
   0x1   :  { %575 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s571_s18 }
   0x2   :  { %576 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s572_s18 }
   0x3   :  { %38627 = dma.done.wait [#allocation54], 16 /* local-dma-wait */ }
   0x4   :  { %38628 = dma.done.wait [#allocation55], 16 /* local-dma-wait */ }
   0x5   : > { %586 = dma.vmem_to_hbm /*vmem=*/%s41_s28 }
   0x6   : > { %38616 = dma.done.wait (%p27683_p1), [#allocation15], 16 /* enhanced-barrier-wait */ }
   0x7   :  { %38629 = dma.done.wait [#allocation56], 16 /* local-dma-wait */ }
"""
WHOLE = """Schedule analysis:
\ttotal scheduled bundles:    100
\t  60.00 scheduled bundles (60.00%): <no hlo>
\t   2.50 scheduled bundles ( 2.50%): %fusion.2 = f32[8]{0} fusion(%b), kind=kLoop, calls=%f.2
\t   4.00 scheduled bundles ( 4.00%): %add.1 = f32[8]{0} add(%fusion.2, %fusion.3)
\t[opcode]     4 scheduled bundles ( 4.00%): add           (1 instances,   4.00 avg)
"""
TEXT = """HloModule jit_f

%f.1 (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %n.1 = f32[8]{0} negate(%x), metadata={op_name="jit(f)/a/neg"}
}

%f.2 (y: f32[8]) -> f32[8] {
  %y = f32[8]{0} parameter(0)
  ROOT %n.2 = f32[8]{0} negate(%y), metadata={op_name="jit(f)/b/neg"}
}

%f.3 (z: f32[8]) -> f32[8] {
  %z = f32[8]{0} parameter(0)
  ROOT %n.3 = f32[8]{0} exponential(%z)
}

ENTRY %main (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %fusion.1 = f32[8]{0} fusion(%a), kind=kLoop, calls=%f.1, backend_config={"estimated_cycles":"1825"}
  %fusion.2 = f32[8]{0} fusion(%b), kind=kLoop, calls=%f.2, metadata={op_name="b"}
  %fusion.3 = f32[8]{0} fusion(%b), kind=kLoop, calls=%f.3
  ROOT %add.1 = f32[8]{0} add(%fusion.2, %fusion.3)
}
"""


@pytest.fixture
def written(tmp_path):
    files = {
        "17-fusion.1-01-final_bundles.txt": BUNDLES,
    }
    files |= {"18-TLP-00-schedule-analysis_final_bundles.txt": WHOLE, "18-TLP-hlo.txt": TEXT}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return read(tmp_path)


def test_a_wait_counts_if_a_copy_was_started_before_it(written):
    """Two that were started together are one wait, and one under a condition may not be there."""
    assert written == Written({"fusion.1": Code(8, 2)}, {"fusion.2": 2.5, "add.1": 4.0})


def test_operations_that_are_alike_have_one_code(written):
    """But for the words that call it; one of another body is not alike."""
    found = of_instructions(Program(TEXT), written)
    assert found == {"fusion.1": Code(8, 2), "fusion.2": Code(10.5, 2), "add.1": Code(4.0, 0)}


def test_what_was_asked_of_libtpu_before_stays(monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--mine=1")
    machine_code.ask_for_it()
    machine_code.ask_for_it()
    asked = os.environ["LIBTPU_INIT_ARGS"]
    assert asked.startswith("--mine=1 --xla_jf_dump_to=") and asked.count("--xla_jf_dump_to") == 1


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
