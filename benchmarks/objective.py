"""Segmentation loss, forward and backward: ours compared with the plain form, a convolution by a whole map.

    python benchmarks/objective.py [--batch 4] [--size 200] [--radius 10] [--threads 1] [--clusters 3 24 45]

Each form runs in a process of its own, so its peak memory is its own. Times are CPU seconds of that process
divided by its threads, so that other work on the machine matters little. Ratios are worth more than seconds.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

FORMS = ("plain", "ours", "weight-gradient", "collapsed")


def measure(
    form: str, *, clusters: int, batch: int, size: int, radius: int, threads: int
) -> dict[str, float]:
    """Time one form and take its peak memory beyond the maps themselves."""
    import torch

    from iic_train.losses.objective import iic_segmentation_loss, terms, weight_gradient_counts

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(2 * batch, clusters, size, size), 9, 1, 4)
    p1, p2 = (view.contiguous().requires_grad_() for view in (8 * smooth).softmax(1).chunk(2))

    def loss() -> torch.Tensor:
        if form == "plain":
            counts = torch.nn.functional.conv2d(p1.transpose(0, 1), p2.transpose(0, 1), padding=radius)
            return terms(counts.permute(2, 3, 0, 1).flatten(0, 1)).loss
        if form == "weight-gradient":
            return terms(weight_gradient_counts(p1, p2, radius).flatten(0, 1)).loss
        return iic_segmentation_loss(p1, p2, radius=radius, collapsed=form == "collapsed")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    runs = []
    for _ in range(1 if form in ("plain", "weight-gradient") else 3):
        p1.grad = p2.grad = None
        start = time.process_time()
        value = loss()
        middle = time.process_time()
        value.backward()
        runs.append((middle - start, time.process_time() - middle))
    forward, backward = (seconds / threads for seconds in min(runs, key=sum))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "forward": forward,
        "backward": backward,
        "extra_mb": (peak - before) / 1024,
        "loss": value.item(),
    }


def main() -> None:
    """Print one line per form and number of clusters."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--radius", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clusters", type=int, nargs="+", default=[3, 24, 45])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--one", nargs=2, metavar=("FORM", "K"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = {name: getattr(options, name) for name in ("batch", "size", "radius", "threads")}
    if options.one:
        print(json.dumps(measure(options.one[0], clusters=int(options.one[1]), **shape)))
        return
    print(", ".join(f"{name} {value}" for name, value in shape.items()))
    print("  k            form  forward s backward s  speed-up  peak MB         loss")
    for clusters in options.clusters:
        plain = 0.0
        for form in options.forms:
            command = [sys.executable, __file__, *sys.argv[1:], "--one", form, str(clusters)]
            figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            seconds = figures["forward"] + figures["backward"]
            plain = plain or seconds
            print(
                f"{clusters:>3} {form:>15} {figures['forward']:>10.3f} {figures['backward']:>10.3f} "
                f"{plain / seconds:>8.1f}x {figures['extra_mb']:>8.0f} {figures['loss']:>12.8f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
