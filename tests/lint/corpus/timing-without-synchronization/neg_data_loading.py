# what is measured is the host's own work
import time


def read_all(paths, decode):
    start = time.perf_counter()
    samples = [decode(path) for path in paths]
    print(f"{len(samples)} files in {time.perf_counter() - start:.1f} s")
    return samples
