"""Operators under jit, grad and vmap, against the same formulas in jax.numpy. `test_jax.py` needs JAX and built handlers."""

import re
import unittest
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import nvte_jax as nvte

RANDOM = np.random.default_rng(1)
# The formulas are computed in float32, whatever the device; of ours, the tensor cores of GPUs take float32 as TF32.
jax.config.update("jax_default_matmul_precision", "highest")
PRODUCTS = 2e-3 if jax.default_backend() == "gpu" else 1e-5


def normal(*shape, dtype=jnp.float32):
    return jnp.asarray(RANDOM.standard_normal(shape), dtype)


def distance(a, b):
    """Norm of the difference, relative to that of b."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def plain_layernorm(x, gamma, beta):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * gamma + beta


def plain_rmsnorm(x, gamma):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gamma


def plain_attention(q, k, v, causal=True, window=None):
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    row, column = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])[None, :]
    seen = np.ones((q.shape[1], k.shape[1]), bool)
    if causal:
        seen = column <= row
    if window is not None:
        seen = seen & (column >= row - window)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)


ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
    "qgelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "relu": jax.nn.relu,
    "srelu": lambda x: jax.nn.relu(x) ** 2,
}
GATED = {"geglu": "gelu", "swiglu": "silu", "qgeglu": "qgelu", "reglu": "relu", "sreglu": "srelu"}


class Operators(unittest.TestCase):
    def same(self, ours, theirs, arguments, bound):
        """Compares results and gradients, compiled, with a weight for each element of the result."""
        weights = normal(*jax.eval_shape(theirs, *arguments).shape)
        self.assertLess(distance(jax.jit(ours)(*arguments), theirs(*arguments)), bound)
        numbers = tuple(range(len(arguments)))
        grads = [jax.jit(jax.grad(lambda *a, f=f: (f(*a) * weights).sum(), numbers))(*arguments) for f in (ours, theirs)]
        for mine, other in zip(*grads):
            self.assertEqual(mine.shape, other.shape)
            self.assertLess(distance(mine, other), bound)

    def test_linear_in_high_precision(self):
        arguments = normal(3, 10, 32), normal(24, 32), normal(24)
        self.same(lambda x, w, b: nvte.linear(x, w, b, fp8=False), lambda x, w, b: x @ w.T + b, arguments, PRODUCTS)

    def test_linear_in_fp8(self):
        arguments = normal(4, 16, 64), normal(48, 64), normal(48)
        self.same(nvte.linear, lambda x, w, b: x @ w.T + b, arguments, 0.07)

    def test_fp8_is_fp8(self):
        x, w = normal(64, 64), normal(32, 64)
        self.assertGreater(distance(nvte.linear(x, w), x @ w.T), 0.01)

    def test_quantize(self):
        x = normal(16, 48)
        codes, transposed, scale_inv = jax.jit(nvte.quantize)(x)
        expected = (x * (448 / jnp.abs(x).max())).astype(jnp.float8_e4m3fn)
        np.testing.assert_array_equal(codes.astype(jnp.float32), expected.astype(jnp.float32))
        np.testing.assert_array_equal(transposed.astype(jnp.float32), expected.T.astype(jnp.float32))
        np.testing.assert_allclose(scale_inv, jnp.abs(x).max() / 448, rtol=1e-6)
        np.testing.assert_allclose(nvte.dequantize(codes, scale_inv), codes.astype(jnp.float32) * scale_inv, rtol=1e-6)

    def test_layernorm(self):
        arguments = normal(5, 7, 40), normal(40), normal(40)
        self.same(nvte.layernorm, plain_layernorm, arguments, 1e-5)

    def test_rmsnorm(self):
        self.same(nvte.rmsnorm, plain_rmsnorm, (normal(5, 7, 40), normal(40)), 1e-5)

    def test_activations(self):
        for name in nvte.ACTIVATIONS:
            with self.subTest(name):
                plain = ACTIVATIONS.get(name)
                if plain is None:
                    inner = ACTIVATIONS[GATED[name]]
                    plain = lambda x, inner=inner: inner(x[..., :20]) * x[..., 20:]
                self.same(lambda x, name=name: nvte.activation(x, name), plain, (normal(3, 6, 40),), 1e-5)

    def test_attention(self):
        for mask, window, kv_heads in (("none", None, 4), ("causal", None, 4), ("causal", 3, 2)):
            with self.subTest(mask=mask, window=window):
                arguments = normal(2, 12, 4, 16), normal(2, 12, kv_heads, 16), normal(2, 12, kv_heads, 16)
                self.same(
                    lambda q, k, v: nvte.attention(q, k, v, mask, window),
                    lambda q, k, v: plain_attention(q, k, v, mask == "causal", window), arguments, 1e-5,
                )

    def test_bfloat16(self):
        x, w = normal(8, 32, dtype=jnp.bfloat16), normal(16, 32, dtype=jnp.bfloat16)
        y = nvte.linear(x, w, fp8=False)
        self.assertEqual(y.dtype, jnp.bfloat16)
        self.assertLess(distance(y.astype(jnp.float32), x.astype(jnp.float32) @ w.astype(jnp.float32).T), 5e-3)

    def test_vmap(self):
        x, gamma = normal(3, 5, 32), normal(32)
        np.testing.assert_allclose(jax.vmap(lambda x: nvte.rmsnorm(x, gamma))(x), nvte.rmsnorm(x, gamma), rtol=1e-6)

    def test_training(self):
        """A network with two linear layers in FP8 learns a function."""
        x = normal(64, 16)
        target = jnp.sin(x @ normal(16, 4))
        parameters = [normal(64, 16) * 0.25, normal(4, 64) * 0.125]

        def loss(parameters):
            hidden = nvte.activation(nvte.linear(x, parameters[0]), "gelu")
            return ((nvte.linear(hidden, parameters[1]) - target) ** 2).mean()

        step = jax.jit(lambda p: (loss(p), jax.tree.map(lambda w, g: w - 0.3 * g, p, jax.grad(loss)(p))))
        first, parameters = step(parameters)
        for _ in range(60):
            last, parameters = step(parameters)
        self.assertLess(last, 0.5 * first)

    def test_readme(self):
        """The program of the README runs."""
        (program,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)
        exec(compile(program, "README.md", "exec"), {})

    def test_errors_name_the_argument(self):
        with self.assertRaisesRegex(Exception, "nvte_cublas_gemm"):
            nvte.matmul(normal(4, 8), normal(4, 9)).block_until_ready()
        with self.assertRaisesRegex(ValueError, "expected one of"):
            nvte.activation(normal(2, 2), "tanh")
        with self.assertRaisesRegex(ValueError, "window"):
            nvte.attention(normal(1, 2, 1, 8), normal(1, 2, 1, 8), normal(1, 2, 1, 8), "none", 3)


if __name__ == "__main__":
    unittest.main()
