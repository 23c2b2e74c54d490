"""A perceptron in JAX, laid out by a plan: PartitionSpecs for its weights, a constraint at every operator.

    python examples/jax_perceptron.py

The function is written once; NumPy traces it for the plan, JAX runs it on four host devices.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import shardproof


def perceptron(x, up, down, np=np, keep=lambda name, value: value):
    hidden = keep("hidden", np.maximum(x @ up, 0))
    y = keep("y", hidden @ down)
    return y


def main() -> None:
    shapes = {"x": (64, 32), "up": (32, 128), "down": (128, 16)}
    inputs = (np.zeros(shapes["x"]), shardproof.parameter(*shapes["up"]), shardproof.parameter(*shapes["down"]))
    plan = shardproof.plan(perceptron, "localhost:4", inputs=inputs, vocabulary="jax")
    print(plan)
    layout: dict[str, object] = {}
    exec(plan.export("jax"), layout)  # noqa: S102 - or write it to a file and import that: it needs nothing of ours
    mesh = layout["make_mesh"]()
    draw = np.random.default_rng(0)
    values = {name: jnp.asarray(draw.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}
    placed = layout["place"](values, mesh)

    @jax.jit
    def planned(x, up, down):
        return perceptron(x, up, down, jnp, lambda name, value: layout["constrain"](name, value, mesh))

    difference = float(jnp.abs(planned(**placed) - perceptron(**values, np=jnp)).max())
    print(f"on {len(jax.devices())} devices: largest difference from one device {difference:.1e}")
    print("weights:", {name: layout["PARAMETERS"][name] for name in sorted(layout["PARAMETERS"])})
    assert difference < 1e-3


if __name__ == "__main__":
    main()
