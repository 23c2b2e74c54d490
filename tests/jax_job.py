"""A job that JAX runs alone on eight host devices: exported PartitionSpecs against one device.

python jax_job.py FOLDER NAME ..     FOLDER/NAME.py are exported files; one JSON object per function
"""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from jax_functions import SIZES, WEIGHTS, text

COLLECTIVE = re.compile(
    r"= (?:\([^=]*?\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def load(path):
    spec = importlib.util.spec_from_file_location("exported_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function(name, keep):
    names = {"np": jnp, "keep": keep}
    exec(text(name, True), names)  # noqa: S102
    return names[name]


def main():
    folder, *wanted = sys.argv[1:]
    for name in wanted:
        exported = load(Path(folder) / f"{name}.py")
        mesh = exported.make_mesh()
        draw = np.random.default_rng(1)
        values = {k: (draw.standard_normal(n) * 0.2).astype("float32") for k, n in SIZES[name].items()}
        placed = exported.place({k: jnp.asarray(v) for k, v in values.items()}, mesh)
        kept = set()

        def keep(tensor, x, exported=exported, mesh=mesh, kept=kept):
            kept.add(tensor)
            return exported.constrain(tensor, x, mesh)

        planned = jax.jit(function(name, keep))
        alone = function(name, lambda tensor, x: x)
        one, many = np.asarray(alone(**values)), planned(**placed)
        weights = [k for k in SIZES[name] if k in WEIGHTS]

        def loss(f, given, held):
            return jnp.square(f(**{**given, **held})).sum()

        grads = {}
        for kind, f, given in (("alone", alone, values), ("planned", planned, placed)):
            held = {k: given[k] for k in weights}
            grads[kind] = jax.grad(lambda h, f=f, given=given: loss(f, given, h))(held)
        largest = max(float(np.abs(g).max()) for g in grads["alone"].values())
        lowered = planned.lower(**placed).compile().as_text()
        (Path(folder) / f"{name}.hlo").write_text(lowered)
        said = {}
        for kind in COLLECTIVE.findall(lowered):
            said[kind] = said.get(kind, 0) + 1
        print(
            json.dumps(
                {
                    "function": name,
                    "output": float(np.abs(np.asarray(many) - one).max() / np.abs(one).max()),
                    "gradient": max(
                        float(np.abs(np.asarray(grads["planned"][k]) - np.asarray(grads["alone"][k])).max()) / largest
                        for k in weights
                    ),
                    "kept": sorted(kept),
                    "spec": str(many.sharding.spec),
                    "devices": len(many.sharding.device_set),
                    "collectives": said,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
