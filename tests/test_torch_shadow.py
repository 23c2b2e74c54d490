"""What is known of tensors that models make without weights: read as numbers, overwritten, and forgotten in time."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from shardproof.models.sources.torch.shadow import watch_modules

pytestmark = pytest.mark.torch


def test_numbers_are_read() -> None:
    context, _ = watch_modules()
    with context:
        widths = torch.arange(4) * 3 + 1
        assert widths.is_meta and widths.tolist() == [1, 4, 7, 10]
        np.testing.assert_array_equal(widths.numpy(), [1, 4, 7, 10])
        assert torch.diff(torch.tensor([2, 5, 9])).tolist() == [3, 4]
        with pytest.raises(NotImplementedError, match="meta tensor"):
            torch.empty(3).tolist()


def test_what_is_overwritten_is_known() -> None:
    context, shadow = watch_modules()
    with context:
        zeros, sevens, copied, part = (torch.empty(2, 3) for _ in range(4))
        zeros.zero_()
        sevens.fill_(7.0)
        copied.copy_(torch.arange(3.0))
        part[:1].zero_()
    assert shadow.value(zeros).tolist() == [[0.0] * 3] * 2
    assert shadow.value(sevens).tolist() == [[7.0] * 3] * 2
    assert shadow.value(copied).tolist() == [[0.0, 1.0, 2.0]] * 2
    assert shadow.value(part) is None


def test_what_unknown_values_are_written_into_is_forgotten() -> None:
    context, shadow = watch_modules()
    with context:
        random = torch.rand(3)
        direct, before, after = (torch.empty(3) for _ in range(3))
        early = before[:2]
        for t in (direct, before, after):
            t.zero_()
        direct.copy_(random)
        early.copy_(random[:2])
        late = after[1:]
        assert shadow.value(late) is not None
        late.copy_(random[1:])
    assert [shadow.value(t) for t in (direct, before, after, late)] == [None] * 4
