"""Files that torch.save writes, read without torch and without running them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

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
