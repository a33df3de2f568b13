"""The bench of this machine, with a JSON line for each row as soon as it is measured.

    python benchmarks/bench_rows.py --device cuda --parts gemm,copy [--formats fp32,bf16] [--sizes 512,4096]

`part` tells the kind of a row; the other keys are those of `precgui bench --json`, which prints only at its end.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from precgui.engine.bench.parts import PARTS
from precgui.engine.bench.run import DEFAULT_PARTS, BenchPlan, run_bench
from precgui.engine.bench.workloads import FORMATS


def show(event: dict[str, Any]) -> None:
    """Print the row of an event of the bench that has one."""
    if event["kind"] == "row":
        print(json.dumps({"part": event["part"], **event["row"]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--parts", default=",".join(DEFAULT_PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--sizes", default="", help="of the square matrices; empty: by the kind of device")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",") if size]
    plan = BenchPlan(options.device, options.formats.split(","), sizes or None, parts=options.parts.split(","))
    run_bench(plan, show, lambda: False)


if __name__ == "__main__":
    main()
