# torch.range, and assert_allclose in a test
import torch


def test_positions():
    want = torch.range(0, 9)  # expect: deprecated-function
    got = torch.arange(10).float()
    torch.testing.assert_allclose(got, want)  # expect: deprecated-function
