"""Files of tensors are read whole or refused, and nothing in them is run."""

import argparse
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file

from eqco.runtime.errors import InputError
from eqco.runtime.tensor_files import read_tensor_file


@pytest.mark.parametrize("zipped", [True, False])
def test_what_torch_saved_is_read_in_its_new_and_its_old_form(tmp_path, zipped):
    path, state = tmp_path / "weights.pth", {"a": torch.arange(3.0)}
    content = {"state_dict": state, "epoch": 7, "args": argparse.Namespace(lr=0.03)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    read, words = read_tensor_file(path)
    assert torch.equal(read["state_dict"]["a"], state["a"])
    assert (read["epoch"], read["args"].lr, words) == (7, 0.03, {})


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.bin"])
def test_safetensors_are_known_by_their_content(tmp_path, name):
    save_file({"a": torch.arange(3.0)}, tmp_path / name, metadata={"by": "hand"})
    read, words = read_tensor_file(tmp_path / name)
    assert torch.equal(read["a"], torch.arange(3.0))
    assert words == {"by": "hand"}


class Malicious:
    def __init__(self, witness):
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_malicious_pickle_is_refused_and_does_nothing(tmp_path, zipped):
    path, witness = tmp_path / "evil.pth", tmp_path / "witness"
    content = {"state_dict": {"a": torch.zeros(1)}, "more": Malicious(witness)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(InputError, match=r"could run code .* nothing of it was run"):
        read_tensor_file(path)
    assert not witness.exists()


def test_a_malicious_plain_pickle_is_refused_and_does_nothing(tmp_path):
    path, witness = tmp_path / "evil.pkl", tmp_path / "witness"
    path.write_bytes(pickle.dumps(Malicious(witness)))
    with pytest.raises(InputError, match="nothing of it was run"):
        read_tensor_file(path)
    assert not witness.exists()


def damaged(tmp_path, where):
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.arange(3000.0)}, path)
    content = bytearray(path.read_bytes())
    if where == "cut":
        content = content[:5000]
    else:
        content[6000] ^= 1
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("where", ["cut", "one bit"])
def test_a_damaged_file_is_named(tmp_path, where):
    path = damaged(tmp_path, where)
    with pytest.raises(InputError, match=rf"{path} is damaged"):
        read_tensor_file(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + b"\0" * 99, b"\x10" + b"\0" * 7 + b"{" * 9]
)
def test_a_file_of_another_kind_is_named(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"notes.txt is damaged, or not a file of torch.save"):
        read_tensor_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no file .*nowhere"):
        read_tensor_file(tmp_path / "nowhere")
