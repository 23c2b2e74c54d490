"""Members of every family of the coverage list give PyTorch's numbers: float64, the largest error against the largest.

Rotary angles, time embeddings and the like are computed in float32 by their models whatever the weights are; there the
agreement is float32's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.torch_case import compare
from tests.torch_models.families import FAMILIES, PLAIN, SINGLE, First

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("name", [f"{family}/{name}" for family, held in FAMILIES.items() for name in held])
def test_members_of_families(name: str) -> None:
    family, _, member = name.partition("/")
    for library in {"resnet18": "torchvision", "diffusion": "diffusers"}.items():
        if library[0] in (family, member):
            pytest.importorskip(library[1])
    pytest.importorskip("transformers")
    if member == "tiny_vae":
        pytest.skip("PyTorch itself refuses it in float64: its latents are float32")
    apart = 1e-4 if member == "flux" else 2e-6  # sines of angles of a thousand turns
    compare(FAMILIES[family][member], tolerance=apart if member in SINGLE else 1e-9, largest=10)


@pytest.mark.parametrize("name", [f"{family}/{name}" for family, names in PLAIN.items() for name in names])
def test_plain_modules(name: str) -> None:
    folder = str(Path(__file__).parent / "benchmarks" / "published")
    sys.path.insert(0, folder)
    try:
        import plain_modules
    finally:
        sys.path.remove(folder)

    def make() -> object:
        module, inputs = getattr(plain_modules, name.partition("/")[2])()
        return First(module), inputs

    compare(make, largest=6)
