"""Arrays of PyTorch, CuPy and JAX on the backend's device, each where it is installed, against their own operators."""

import importlib.util
import os
import sys
import unittest

import nvte

ON_GPU = nvte.backend_name() == "cuda"
# JAX takes most of the memory of a GPU otherwise.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_PLATFORMS", "cuda" if ON_GPU else "cpu")
# Tensor cores take float32 as TF32.
PRODUCTS = 5e-2 if ON_GPU else 1e-4


def installed(name):
    return unittest.skipUnless(importlib.util.find_spec(name), f"{name} is not installed")


def farthest(a, b):
    return float(abs(a - b).max())


class Test(unittest.TestCase):
    @installed("torch")
    def test_torch(self):
        import torch

        device = "cuda" if ON_GPU else "cpu"
        if ON_GPU and not torch.cuda.is_available():
            self.skipTest("PyTorch has no CUDA")
        torch.manual_seed(1)

        def normal(*shape, dtype=torch.float32):
            return torch.randn(shape, device=device).to(dtype)

        x, weight, bias, dy = normal(32, 64), normal(48, 64), normal(48), normal(32, 48)
        y = nvte.gemm(x, weight, transpose_b=True, bias=bias)
        self.assertIsInstance(y, torch.Tensor)
        exact = x.double() @ weight.double().T + bias
        self.assertLess(farthest(y, exact), PRODUCTS)
        gamma, beta = normal(64), normal(64)
        y, _, _ = nvte.layernorm(x, gamma, beta)
        self.assertLess(farthest(y, torch.nn.functional.layer_norm(x, (64,), gamma, beta)), 1e-5)
        half = normal(32, 64, dtype=torch.bfloat16)
        y, _ = nvte.rmsnorm(half, gamma.bfloat16())
        self.assertEqual(y.dtype, torch.bfloat16)

        layer = nvte.Linear(nvte.Context(), in_features=64, out_features=48)
        layer.bind("weight", weight)
        layer.bind("bias", bias)
        dweight = torch.zeros_like(weight)
        layer.bind_gradient("weight", dweight)
        y, tape = layer.forward(x)
        dx = layer.backward(tape, dy)
        for got, expected in ((y, exact), (dx, dy.double() @ weight.double()), (dweight, dy.double().T @ x.double())):
            self.assertIsInstance(got, torch.Tensor)
            self.assertLess(farthest(got, expected), PRODUCTS)

        q = nvte.quantize(x)
        codes = (x * (448 / x.abs().max())).to(torch.float8_e4m3fn).view(torch.uint8)
        self.assertTrue(torch.equal(torch.from_dlpack(q.rowwise), codes))
        self.assertEqual(nvte.as_tensor(codes, "float8e4m3").tobytes(), q.rowwise.tobytes())
        if ON_GPU:
            # Work of another stream of PyTorch is seen by a call on the same one.
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                late = torch.ones(32, 64, device=device)
                y = nvte.gemm(late, late, transpose_b=True)
                self.assertEqual(float(y.sum()), 32 * 32 * 64)
            with self.assertRaisesRegex(nvte.Error, "backend's device"):
                nvte.as_tensor(torch.ones(3))

    @installed("cupy")
    @unittest.skipUnless(ON_GPU, "CuPy needs a GPU")
    def test_cupy(self):
        import cupy

        cupy.random.seed(1)
        x, weight = (cupy.random.standard_normal(shape, dtype=cupy.float32) for shape in ((32, 64), (48, 64)))
        y = nvte.gemm(x, weight, transpose_b=True)
        self.assertIsInstance(y, cupy.ndarray)
        self.assertLess(farthest(y, x.astype(cupy.float64) @ weight.T.astype(cupy.float64)), PRODUCTS)
        context = nvte.Context()
        layer = nvte.LayerNormMLP(context, hidden_size=64, ffn_hidden_size=128)
        gradients = layer.make_gradients()
        with context.autocast(nvte.Recipe("current_scaling")):
            y, tape = layer.forward(x)
        dx = layer.backward(tape, y)
        self.assertIsInstance(dx, cupy.ndarray)
        self.assertTrue(bool(cupy.isfinite(cupy.from_dlpack(gradients["fc1_weight"])).all()))
        # A stream of CuPy that does not wait for the default one: the call is told of it.
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            late = cupy.arange(32 * 64, dtype=cupy.float32).reshape(32, 64)
            back = nvte.dequantize(nvte.quantize(late, stream=stream), stream=stream)
            stream.synchronize()
            self.assertLess(farthest(cupy.from_dlpack(back), late), 2048 / 16)

    @installed("jax")
    def test_jax(self):
        import jax
        import jax.numpy as jnp

        if ON_GPU and jax.default_backend() != "gpu":
            self.skipTest("JAX has no CUDA")
        one, two = jax.random.split(jax.random.key(1))
        x, weight = jax.random.normal(one, (32, 64)), jax.random.normal(two, (48, 64))
        # What JAX has not computed yet is waited for.
        x = jax.jit(lambda x: sum(x * i for i in range(8)) / 28)(x)
        y = jnp.from_dlpack(nvte.gemm(x, weight, transpose_b=True))
        self.assertLess(farthest(y, jnp.matmul(x, weight.T, precision="highest")), PRODUCTS)
        y, _, _ = nvte.layernorm(x, jnp.ones(64), jnp.zeros(64))
        y = jnp.from_dlpack(y)
        deviation = jnp.sqrt(x.var(1, keepdims=True) + 1e-5)
        self.assertLess(farthest(y, (x - x.mean(1, keepdims=True)) / deviation), 1e-5)
        half = x.astype(jnp.bfloat16)
        y = jnp.from_dlpack(nvte.gemm(half, half, transpose_b=True))
        self.assertEqual(y.dtype, jnp.bfloat16)


if __name__ == "__main__":
    sys.exit(not unittest.main(exit=False, verbosity=1).result.wasSuccessful())
