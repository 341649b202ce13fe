"""torch_attention in PyTorch's automatic differentiation. Exit status 77, skipped, where PyTorch is not installed."""

import sys
import unittest

import annulus

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)


def random_tensors(dtype, queries=23, keys=23, heads=4, kv_heads=2, head_dim=6, value_dim=5):
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, queries, heads, head_dim), (2, keys, kv_heads, head_dim), (2, keys, kv_heads, value_dim))
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


def torch_result(q, k, v):
    """Causal attention as PyTorch computes it, which wants heads before the sequence and as many of k as of q."""
    group = q.shape[2] // k.shape[2]
    rows = (q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(group, 1) for x in (k, v)))
    return torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True).transpose(1, 2)


class WithTorch(unittest.TestCase):
    def compare(self, dtype, bound, annulus_result):
        results = []
        for attend in (annulus_result, torch_result):
            tensors = random_tensors(dtype)
            output = attend(*tensors)
            (output * torch.cos(torch.arange(output.numel(), dtype=dtype)).view(output.shape)).sum().backward()
            results.append([output.detach().double(), *(x.grad.double() for x in tensors)])
        for found, wanted in zip(*results):
            self.assertLess(float((found - wanted).abs().max() / wanted.abs().max()), bound)

    def test_same_as_torch(self):
        for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)):
            self.compare(dtype, bound, lambda *x: annulus.torch_attention(*x, causal=True))

    def test_numerical_gradients(self):
        tensors = random_tensors(torch.float64, queries=5, keys=7)
        options = {"window": (3, 1), "query_offset": 2, "logit_softcap": 3.0}
        self.assertTrue(torch.autograd.gradcheck(lambda *x: annulus.torch_attention(*x, **options), tensors))

    def test_ring(self):
        """Each rank differentiates by its own rows; the gradients of all ranks' outputs arrive at k and v."""
        whole = random_tensors(torch.float64)
        torch_result(*whole).square().sum().backward()

        def on_rank(ring):
            places = annulus.positions("zigzag", ring.rank, ring.size, 23)
            own = [x.detach()[:, places].clone().requires_grad_() for x in whole]
            annulus.torch_attention(*own, ring=ring, causal=True, sharding="zigzag").square().sum().backward()
            return max(float((x.grad - y.grad[:, places]).abs().max()) for x, y in zip(own, whole))

        self.assertLess(max(annulus.run_ring(3, on_rank)), 1e-10)


if __name__ == "__main__":
    unittest.main()
