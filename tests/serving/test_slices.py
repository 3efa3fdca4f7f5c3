"""Slices of TPUs that exist, and their hosts."""

import pytest

from jaxspec.serving.slices import GENERATIONS, Slice


@pytest.mark.parametrize(
    ("text", "accelerator", "hosts", "chips", "devices"),
    [
        ("v5e:1x1", "tpu-v5-lite-podslice", 1, 1, 1),
        ("v5e:2x4", "tpu-v5-lite-podslice", 1, 8, 8),
        ("v5e:16x16", "tpu-v5-lite-podslice", 64, 4, 256),
        ("v6e:2x2", "tpu-v6e-slice", 1, 4, 4),
        ("v6e:4x8", "tpu-v6e-slice", 8, 4, 32),
        ("v5p:2x2x1", "tpu-v5p-slice", 1, 4, 4),
        ("v5p:8x16x44", "tpu-v5p-slice", 1408, 4, 5632),
        ("tpu7x:1x1x1", "tpu7x", 1, 1, 2),
        ("tpu7x:2x2x2", "tpu7x", 2, 4, 16),
        ("tpu7x:4x4x8", "tpu7x", 32, 4, 256),
    ],
)
def test_hosts_and_chips(text, accelerator, hosts, chips, devices):
    found = Slice.of(text)
    assert (found.accelerator, found.hosts, found.chips_per_host, found.devices) == (accelerator, hosts, chips, devices)


@pytest.mark.parametrize(
    "text",
    ["v5e:2x8", "v5e:2x2x1", "v6e:4x4x4", "v5p:1x1x1", "v5p:4x4x6", "v5p:8x4x4", "v5p:16x24x24", "tpu7x:2x2", "tpu7x:"]
    + ["v5e:02x2", "v5e:4x4\n", "v5e:٢x٢", "v5p:0x0x0", "v5p:4x4x99999"],
)
def test_what_does_not_exist_is_an_error_that_lists_what_does(text):
    with pytest.raises(ValueError, match=r"has slices of .*2x2.*; got .*, pass"):
        Slice.of(text)


@pytest.mark.parametrize("text", ["", "v4:2x2x1", "2x2", "TPU7x:2x2x1"])
def test_generations_are_listed(text):
    with pytest.raises(ValueError, match="one of v5e, v6e, v5p, tpu7x and its extents"):
        Slice.of(text)


def test_each_listed_slice_exists():
    for name, generation in GENERATIONS.items():
        assert all(Slice.of(f"{name}:{one}").chips for one in generation.topologies)
