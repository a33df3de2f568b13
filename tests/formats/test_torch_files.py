"""Files that torch.save writes, read without torch and without running them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from precgui.formats.checkpoints.contents import open_checkpoint
from precgui.formats.tensorfile import TensorFileError, load_tensor, tensor_names


class _Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (Path("exploded"),))


def test_that_tensors_of_any_dtype_and_stride_come_back(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    saved = {
        "w": base, "t": base.t()[1:], "h": base.half(), "b": base.bfloat16(), "d": base.double(),
        "i": torch.arange(5), "p": torch.nn.Parameter(base), "n": {"deep": base[0]}, "empty": torch.zeros(0, 3),
        "x": "word",
    }  # fmt: skip
    path = tmp_path / "m.pt"
    torch.save(saved, path)
    names = tensor_names(path)
    assert names == ["w", "t", "h", "b", "d", "i", "p", "n.deep", "empty"]
    flat = {**saved, "n.deep": base[0]}
    for name in names:
        wanted = flat[name]
        assert isinstance(wanted, torch.Tensor)
        found = load_tensor(path, name)
        assert found.shape == wanted.shape
        assert torch.equal(torch.from_numpy(found.copy()), wanted.detach().double())


def test_that_a_state_dict_is_listed_by_its_keys(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.save(model.state_dict(), tmp_path / "s.pth")
    assert tensor_names(tmp_path / "s.pth") == list(model.state_dict())
    torch.save(torch.ones(3), tmp_path / "one.pt")
    assert load_tensor(tmp_path / "one.pt", "tensor").tolist() == [1, 1, 1]


def test_that_nothing_in_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"bomb": _Bomb(), "w": torch.ones(2)}, tmp_path / "bomb.pt")
    assert tensor_names(tmp_path / "bomb.pt") == ["w"]
    assert load_tensor(tmp_path / "bomb.pt", "w").tolist() == [1, 1]
    assert not (tmp_path / "exploded").exists()


def test_that_damaged_files_get_one_sentence(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(64)}, tmp_path / "good.pt")
    whole = (tmp_path / "good.pt").read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        with pytest.raises(TensorFileError):
            tensor_names(tmp_path / "cut.pt")
    with zipfile.ZipFile(tmp_path / "odd.pt", "w") as archive:
        archive.writestr("odd/data.pkl", b"\x80\x02]q\x00(K\x01K\x02e.")
    assert tensor_names(tmp_path / "odd.pt") == []
    with pytest.raises(TensorFileError, match="no tensor"):
        load_tensor(tmp_path / "good.pt", "v")


def test_that_a_pickled_module_is_told_with_its_cure(tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2)), tmp_path / "module.pt")
    with pytest.raises(TensorFileError, match=r"a pickled module \(Sequential\) with 2 tensors.*model.state_dict\(\)"):
        open_checkpoint(tmp_path / "module.pt")
    torch.save({"model": torch.nn.Linear(2, 2), "mean": torch.ones(3)}, tmp_path / "part.pt")
    opened = open_checkpoint(tmp_path / "part.pt")
    assert [tensor.name for tensor in opened.tensors] == ["mean"]
    assert opened.notes[0].startswith("2 more tensors of part.pt are in a pickled module (Linear)")


def test_that_every_type_has_its_bytes_and_words(tmp_path: Path) -> None:
    zeros = [(name, getattr(torch, name)) for name in ("complex128", "complex64", "bool", "uint8", "uint16", "uint64")]
    held: dict[str, torch.Tensor] = {name: torch.zeros(3, dtype=dtype)[1:] for name, dtype in zeros}
    held["half"] = torch.empty(2, dtype=torch.float32).view(torch.complex32)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        held[str(dtype)] = torch.tensor([1.5, -2.0, 0.25]).to(dtype)[1:]
    torch.save(held, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as archive, zipfile.ZipFile(tmp_path / "other.pt", "w") as other:
        for entry in archive.infolist():
            content = archive.read(entry).replace(b"ComplexFloatStorage", b"OtherKindOf_Storage")
            other.writestr(entry, content)
    found = {tensor.name: tensor for tensor in open_checkpoint(tmp_path / "m.pt").tensors}
    whole, pairs = "whole numbers, no weights", "complex numbers"
    assert {name: (tensor.nbytes, tensor.why_not) for name, tensor in found.items()} == {
        "complex128": (32, pairs), "complex64": (16, pairs), "half": (8, pairs), "bool": (2, whole),
        "uint8": (2, whole), "uint16": (4, whole), "uint64": (16, whole),
        "torch.float8_e4m3fn": (2, ""), "torch.float8_e5m2": (2, ""),
    }  # fmt: skip
    for name in ("torch.float8_e4m3fn", "torch.float8_e5m2"):
        assert found[name].read(0, 2).tolist() == load_tensor(tmp_path / "m.pt", name).tolist() == [-2, 0.25]
    (unknown,) = [tensor for tensor in open_checkpoint(tmp_path / "other.pt").tensors if tensor.name == "complex64"]
    assert (unknown.nbytes, unknown.why_not, unknown.stored_as) == (16, "the type OtherKindOf_", "OtherKindOf_")
