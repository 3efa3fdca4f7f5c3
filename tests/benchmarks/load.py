"""Measures the host memory that loading a model takes, on one device and split over simulated devices."""

import multiprocessing
import resource

_UNIT = 1024  # Linux gives the peak in KiB


def run(name: str, repeats: int) -> None:
    """Prints the peak above what the model itself takes: on a CPU its parameters lie in host memory too."""
    context = multiprocessing.get_context("spawn")
    for devices in (1, 3):  # the default model has three key-value heads
        shares = []
        for _ in range(repeats):
            with context.Pool(1) as pool:  # a new process each time: the peak only rises
                size, peak, largest = pool.apply(_measure, (name, devices))
            shares.append(peak / size)
        shares.sort()
        print(
            f"{name} on {devices} devices: the peak is {shares[len(shares) // 2]:.2f} of its {size / 1e6:.0f} MB "
            f"({shares[0]:.2f}-{shares[-1]:.2f}); its largest parameter is {largest / size:.2f} of it"
        )


def _measure(name: str, devices: int) -> tuple[int, int, int]:
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    import jaxspec

    mesh = jax.make_mesh((1, devices), ("data", "model"))
    jax.block_until_ready(jax.device_put(1.0))
    before = _peak()
    leaves = jax.tree.leaves(jax.block_until_ready(jaxspec.load(name, mesh=mesh).params))
    sizes = [sum(part.data.nbytes for part in leaf.addressable_shards) for leaf in leaves]
    return sum(sizes), _peak() - before, max(sizes)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
