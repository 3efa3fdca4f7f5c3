"""The header of safetensors: each error names the tensor and the field."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxspec.checkpoints.safetensors import read_header
from jaxspec.io.files import FileFormatError

TENSORS = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.int8), "c": np.zeros((0, 5)), "d": np.array(1.0)}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    return tmp_path / "x.safetensors"


def test_it_is_what_safetensors_reads(path):
    header = read_header(path)
    with safe_open(path, framework="np") as file:
        parts = {name: file.get_slice(name) for name in TENSORS}
        expected = {name: (x.get_dtype(), tuple(x.get_shape())) for name, x in parts.items()}
    assert {name: (entry.dtype, entry.shape) for name, entry in header.items()} == expected
    raw = path.read_bytes()
    data = raw[8 + int.from_bytes(raw[:8], "little") :]
    for name, x in TENSORS.items():
        assert data[header[name].start : header[name].end] == x.tobytes()


def test_metadata_may_be_null(path):
    """The library takes it so."""
    header = b'{"__metadata__": null}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with safe_open(path, framework="np") as file:
        assert not [*file.keys()]
    assert read_header(path) == {}


@pytest.mark.parametrize(
    ("tensor", "field", "value"),
    [
        ("a", "dtype", "F33"),
        ("a", "dtype", None),
        ("a", "dtype", "F16"),
        ("a", "shape", [2, -3]),
        ("a", "shape", [2, 3.0]),
        ("a", "shape", [True, 6]),
        ("a", "shape", [2, 4]),
        ("a", "shape", [2**63, 2]),
        ("b", "data_offsets", [0, 4]),
        ("b", "data_offsets", [4]),
        ("b", "data_offsets", "05"),
        ("c", None, 7),
        ("__metadata__", "format", 1),
    ],
)
def test_a_wrong_field_is_named(path, tensor, field, value):
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header[tensor] = value if field is None else header[tensor] | {field: value}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
    with pytest.raises(FileFormatError, match=f"x.safetensors: .*{tensor}.*{field or ''}"):
        read_header(path)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100, -1, None])
def test_a_file_that_is_cut_or_has_more(path, count):
    raw = path.read_bytes()
    path.write_bytes(raw + b"\0" if count is None else raw[:count])
    with pytest.raises(FileFormatError, match="x.safetensors: .*download it again"):
        read_header(path)
