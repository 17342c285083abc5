# a local function with the name of a deprecated one
from mylib.decompositions import cholesky, qr


class Solver:
    def norm(self, x):
        return abs(x)

    def solve(self, a, b):
        q, r = qr(a)
        return cholesky(r), self.norm(b), q
