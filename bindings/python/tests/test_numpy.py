"""NumPy arrays as inputs and outputs, in place."""

import sys
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: NumPy is not installed")
    sys.exit(0)

import nvte


class Test(unittest.TestCase):
    def setUp(self):
        self.random = np.random.default_rng(1)

    def normal(self, *shape):
        return self.random.standard_normal(shape, dtype=np.float32)

    def test_in_place(self):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        tensor = nvte.as_tensor(x)
        x[1, 2] = 9
        self.assertEqual(tensor.tolist(), x.tolist())
        back = np.from_dlpack(tensor)
        self.assertTrue(np.shares_memory(back, x))
        for dtype in (np.float16, np.int16, np.int32, np.int64, np.uint8):
            values = np.array([1, 2, 3], dtype)
            self.assertEqual(nvte.as_tensor(values).tolist(), [1, 2, 3])
        own = np.from_dlpack(nvte.array([[1, 2], [3, 4]]))
        np.testing.assert_array_equal(own, [[1, 2], [3, 4]])
        with self.assertRaisesRegex(ValueError, "contiguous"):
            nvte.as_tensor(x.T)
        with self.assertRaisesRegex(TypeError, "not supported"):
            nvte.as_tensor(np.zeros(3))

    def test_operators(self):
        a, b, bias = self.normal(32, 64), self.normal(48, 64), self.normal(48)
        out = nvte.gemm(a, b, transpose_b=True, bias=bias)
        self.assertIsInstance(out, np.ndarray)
        np.testing.assert_allclose(out, a.astype(np.float64) @ b.T.astype(np.float64) + bias, atol=1e-4)
        # One scale for a tensor: a number of E4M3 is off by at most 1/16, or by half of the smallest one.
        q = nvte.quantize(a)
        error = np.abs(np.from_dlpack(nvte.dequantize(q)) - a)
        self.assertTrue((error <= np.abs(a) / 16 + np.abs(a).max() / 448 * 2.0**-10).all())
        left, right = nvte.quantize(a), nvte.quantize(b)
        product = np.from_dlpack(nvte.gemm(left, right, transpose_b=True))
        exact = np.from_dlpack(nvte.dequantize(left)).astype(np.float64) @ np.from_dlpack(nvte.dequantize(right)).T
        np.testing.assert_allclose(product, exact, atol=1e-3)
        gamma, beta = self.normal(64), self.normal(64)
        y, _, _ = nvte.layernorm(a, gamma, beta)
        wide = a.astype(np.float64)
        deviation = np.sqrt(wide.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y, (wide - wide.mean(1, keepdims=True)) / deviation * gamma + beta, atol=1e-5)

    def test_columnwise_products(self):
        """The gradient of a weight in FP8: a product that sums over the rows of both operands."""
        x, dy = self.normal(64, 32), self.normal(64, 48)
        for scaling in ("tensor", "mxfp8"):
            left = nvte.quantize(dy, scaling=scaling, columnwise=True)
            right = nvte.quantize(x, scaling=scaling, columnwise=True)
            got = np.from_dlpack(nvte.gemm(left, right, transpose_a=True))
            expected = dy.T.astype(np.float64) @ x
            # Each product is off by up to 1/8, and the errors of 64 products have both signs.
            self.assertLess(np.abs(got - expected).max(), 4, scaling)

    def test_module(self):
        context = nvte.Context()
        layer = nvte.Linear(context, in_features=32, out_features=16)
        weight, bias = self.normal(16, 32), self.normal(16)
        layer.assign("weight", weight)
        layer.bind("bias", bias)
        grad = np.full((16, 32), 1, np.float32)
        layer.bind_gradient("weight", grad, accumulate=True)
        x, dy = self.normal(8, 32), self.normal(8, 16)
        y, tape = layer.forward(x)
        self.assertIsInstance(y, np.ndarray)
        np.testing.assert_allclose(y, x @ weight.T + bias, atol=1e-5)
        dx = layer.backward(tape, dy)
        np.testing.assert_allclose(dx, dy @ weight, atol=1e-5)
        np.testing.assert_allclose(grad, 1 + dy.T @ x, atol=1e-5)
        self.assertIsNone(layer.backward(tape, dy, needs_input_grad=False))


if __name__ == "__main__":
    unittest.main()
