"""Tensors quantised in pieces: the same as at once, whatever the size of a piece, and every loss accounted for."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from precgui.formats import comparison, pieces, schemes
from precgui.formats.affine import quantize_affine, quantize_sign, quantize_ternary
from precgui.formats.arrays import quantize_array
from precgui.formats.blocks import SCALE_RULES, quantize_blocks_array
from precgui.formats.comparison import FormatComparison, HashedCodes, compare
from precgui.formats.model import IntFormat
from precgui.formats.pieces import TensorReader, in_memory
from precgui.formats.registry import get
from precgui.formats.rounding import CastPolicy
from precgui.formats.schemes import GROUPINGS, SCHEMES, Options
from precgui.formats.tensorfile import TensorFileError, open_tensor
from tests.formats.references import signal_to_noise_db

NORMAL = np.random.default_rng(4).normal(size=(8, 128))


def _compared(values: object, scheme: str, **options: object) -> FormatComparison:
    source = values if isinstance(values, TensorReader) else in_memory(values)
    return compare(source, scheme, Options(**options), lambda _: None)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pieces, comparison, schemes):
        monkeypatch.setattr(module, "PIECE", 256)


def test_that_binary_and_ternary_weights_keep_the_mean_magnitude() -> None:
    data = [0.5, -1.5, 0.0, 2.0]
    assert quantize_sign(data, 1.0).tolist() == [1.0, -1.0, 1.0, 1.0]
    assert quantize_ternary(data, 1.0).tolist() == [0.0, -1.0, 0.0, 1.0]
    assert quantize_ternary(np.zeros(3), 0.0).tolist() == [0, 0, 0]
    assert _compared(data, "ternary").prepared.scale == _compared(data, "int1").prepared.scale == 1.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_that_every_scheme_quantises_and_accounts_for_what_it_lost(scheme: str) -> None:
    found = _compared(NORMAL, scheme)
    part = found.part(0, NORMAL.size)
    assert np.array_equal(part.before, NORMAL.ravel())
    assert found.losses.sqnr_db == pytest.approx(signal_to_noise_db(part.before, part.after))
    assert found.losses.largest_error == np.abs(part.before - part.after).max()
    assert found.losses.zeroed == np.count_nonzero((part.after == 0) & (part.before != 0))
    assert found.losses.clipped == np.count_nonzero(part.clipped)
    assert found.counts.sum() == NORMAL.size
    assert found.counts.tolist() == np.histogram(NORMAL, found.edges)[0].tolist()
    assert found.after.tolist() == np.histogram(part.after, found.edges)[0].tolist()
    levels, numbers = np.unique(part.after, return_counts=True)
    assert (found.levels.tolist(), found.level_counts.tolist()) == (levels.tolist(), numbers.tolist())
    assert 1 <= found.prepared.bits_per_value <= 16
    assert _compared([0.0], scheme).part(0, 1).after.shape == (1,)


@pytest.mark.parametrize("shape", [(24, 128), (2, 3, 512), (1536,), (3, 1024)])
@pytest.mark.parametrize("rounding", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("scheme", ["int4", "uint8", "nf4", "mxfp4", "nvfp4", "e4m3fn", "ternary"])
def test_that_pieces_give_what_the_whole_gives(
    monkeypatch: pytest.MonkeyPatch, scheme: str, rounding: str, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(1).normal(size=shape) * np.logspace(-2, 2, shape[-1])
    for grouping in GROUPINGS if scheme in schemes.INTEGERS else ("tensor",):
        if grouping == "row" and len(shape) == 1:
            continue
        options = {"rounding": rounding, "grouping": grouping, "symmetric": False, "seed": 3}
        whole = _compared(values, scheme, **options)
        with monkeypatch.context() as patched:
            for module in (pieces, comparison, schemes):
                patched.setattr(module, "PIECE", 256)
            cut = _compared(values, scheme, **options)
            part = cut.part(100, 1100)
        assert cut.losses.sqnr_db == pytest.approx(whole.losses.sqnr_db, rel=1e-12)
        assert (cut.losses.clipped, cut.losses.zeroed) == (whole.losses.clipped, whole.losses.zeroed)
        assert cut.after.tolist() == whole.after.tolist()
        assert cut.level_counts.tolist() == whole.level_counts.tolist()
        assert part.after == pytest.approx(whole.part(100, 1100).after, rel=1e-14)  # means are added up otherwise
        assert cut.rules == pytest.approx(whole.rules)


def test_that_the_pieces_agree_with_the_array_forms(small_pieces: None) -> None:
    values = np.random.default_rng(2).normal(size=(9, 100))
    nvfp4 = quantize_blocks_array(values, "nvfp4", rounding="stochastic", seed=0).values
    assert np.array_equal(_compared(values, "nvfp4", rounding="stochastic").part(0, 900).after, nvfp4.ravel())
    fmt = get("uint8")
    assert isinstance(fmt, IntFormat)
    affine = quantize_affine(values, fmt, symmetric=False, axis=0).values
    found = _compared(values, "uint8", symmetric=False, grouping="row")
    assert np.array_equal(found.part(0, 900).after, affine.ravel())
    plain = quantize_array(values, get("e2m1"), CastPolicy("stochastic", "saturate"))
    assert np.array_equal(_compared(values, "e2m1", rounding="stochastic").part(0, 900).after, plain.ravel())


def test_that_a_long_row_with_a_scale_of_its_own_is_looked_through_first(small_pieces: None) -> None:
    values = np.random.default_rng(2).normal(size=(3, 700)) * np.array([[1], [100], [1e-3]])
    fmt = get("int8")
    assert isinstance(fmt, IntFormat)
    wanted = quantize_affine(values, fmt, axis=0).values
    assert np.array_equal(_compared(values, "int8", grouping="row").part(0, 2100).after, wanted.ravel())


def test_that_finer_groups_and_more_bits_cost_less_error() -> None:
    data = NORMAL * np.logspace(-2, 2, 8)[:, None]
    per = {grouping: _compared(data, "int4", grouping=grouping).losses.sqnr_db for grouping in GROUPINGS}
    assert per["group of 32"] > per["group of 128"] > per["tensor"]
    assert _compared(data, "int8").losses.sqnr_db > _compared(data, "int4").losses.sqnr_db
    edited = _compared(data, "int8", scale=0.01, zero_point=0)
    assert edited.prepared.scale == 0.01
    assert edited.losses.clipped == (np.abs(data) > 1.275).sum()


def test_that_the_rules_are_compared_for_mx_alone() -> None:
    assert set(_compared(NORMAL, "mxfp4").rules) == set(SCALE_RULES)
    for rule in SCALE_RULES:
        found = _compared(NORMAL, "mxfp4", rule=rule)
        assert found.rules[rule] == found.losses.sqnr_db
    assert _compared(NORMAL, "nvfp4").rules == _compared(NORMAL, "int8").rules == {}
    with pytest.raises(ValueError, match="no way to quantise"):
        _compared(NORMAL, "int3")
    with pytest.raises(ValueError, match="does not divide"):
        _compared(NORMAL[:, :100], "int8", grouping="group of 128")
    with pytest.raises(ValueError, match="no values"):
        _compared(np.zeros(0), "int8")


def test_that_figures_are_shown_meanwhile_from_all_over_the_tensor(
    small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "PARTLY_S", -1)
    values = np.arange(25_600.0)
    shown: list[FormatComparison] = []
    last = compare(in_memory(values), "mxfp4", Options(), lambda _: None, shown.append)
    assert [each.counted for each in shown] == list(range(256, 25_601, 256))
    assert last.counted == values.size
    assert [int(each.counts.sum()) for each in shown] == [each.counted for each in shown]
    fifth = np.add.reduceat(shown[19].counts, range(0, comparison.BINS, comparison.BINS // 5))
    assert fifth.min() > 0.1 * shown[19].counted


def test_that_numbers_that_are_not_finite_are_left_out_of_the_figures() -> None:
    found = _compared([np.nan, np.inf, -np.inf, 1.0, -2.0], "int8")
    assert found.prepared.scale == 2 / 127
    assert found.counts.sum() == 2
    assert np.isfinite(found.losses.sqnr_db)
    for extreme in ([-1.7e308, 1.7e308], [5e-324, 1e-323], [3.0, 3.0]):
        assert _compared(extreme, "fp16").counts.sum() == 2


def test_that_levels_are_counted_until_there_are_too_many() -> None:
    values = np.repeat(np.random.default_rng(0).normal(size=1500), 3)
    levels = HashedCodes(2000)
    for part in np.array_split(values, 7):
        levels.add(part)
    found, counts = levels.counted()
    assert np.array_equal(found, np.unique(values))
    assert set(counts.tolist()) == {3}
    levels.add(np.arange(600.0))
    assert levels.counted()[0].size == 0
    crowded = HashedCodes(100_000)
    crowded.add(np.arange(80_000.0))
    crowded.add(np.array([-0.0, 5.0]))
    found, counts = crowded.counted()
    assert np.array_equal(found, np.arange(80_000.0))
    assert counts.sum() == 80_002


def test_that_a_file_that_is_cut_meanwhile_is_told(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", NORMAL)
    opened = open_tensor(tmp_path / "w.npy", "w")
    assert np.array_equal(opened.read(5, 9), NORMAL.ravel()[5:9])
    (tmp_path / "w.npy").write_bytes((tmp_path / "w.npy").read_bytes()[:-8])
    with pytest.raises(TensorFileError, match="shorter"):
        opened.read(1000, NORMAL.size)
    with pytest.raises(TensorFileError, match="damaged: it says 1024 numbers and holds 1023"):
        open_tensor(tmp_path / "w.npy", "w")
    np.save(tmp_path / "f.npy", np.asfortranarray(NORMAL.astype(">f4")))
    assert np.array_equal(open_tensor(tmp_path / "f.npy", "f").read(3, 200), NORMAL.astype(np.float32).ravel()[3:200])


def _safetensors(header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("deep.safetensors", _safetensors(b"[" * 100_000), "no readable .safetensors"),
     ("x.safetensors", _safetensors(b'{"x":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}'), "damaged"),
     ("x.safetensors", _safetensors(b'{"x":{"dtype":"F32","shape":[99999999,999],"data_offsets":[0,8]}}'), "elements")],
)  # fmt: skip
def test_that_a_hostile_header_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TensorFileError, match=words):
        open_tensor(tmp_path / name, "x")


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".", "nested more than 64 deep"),
        (bytes(100_000_001), "bytes long"),
    ],
)
def test_that_a_hostile_stream_is_refused_in_a_sentence(tmp_path: Path, stream: bytes, words: str) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", stream)
    with pytest.raises(TensorFileError, match=words):
        open_tensor(tmp_path / "x.pt", "x")
