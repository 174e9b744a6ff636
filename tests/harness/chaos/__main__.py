"""`python -m harness.chaos --seeds 20 --nodes 3,5`: real processes, real faults."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from harness.__main__ import seeds_of
from harness.chaos.course import Plan, Report, run
from harness.chaos.faults import KINDS
from harness.chaos.namespaces import NamespaceError, Namespaces

COUNTED = ("attempts", "acknowledged", "ok", "lost", "unexpected", "duplicated", "recovered")


def done_before(results: Path) -> dict[tuple[int, int, str], dict[str, Any]]:
    """What the file has: (seed, nodes, wires) -> record."""
    if not results.exists():
        return {}
    records = [json.loads(line) for line in results.read_text().splitlines() if line]
    return {(r["seed"], r["nodes"], r.get("wires", "proxies")): r for r in records}


def record_of(report: Report) -> dict[str, Any]:
    return {
        "seed": report.plan.seed,
        "nodes": report.plan.nodes,
        "seconds": report.plan.seconds,
        "wires": report.plan.wires,
        "took_s": round(report.took_s, 1),
        "stalled_s": round(report.stalled_s, 1),
        "epochs": report.epochs,
        "faults": dict(report.faults),
        **report.findings.as_record(),
    }


def line_of(record: dict[str, Any]) -> str:
    counted = ", ".join(f"{name} {record[name]}" for name in COUNTED)
    faults = sum(record["faults"].values())
    nodes = f"{record['nodes']} nodes, {record['wires']}"
    return f"seed {record['seed']}, {nodes}: {counted}; {faults} faults"


def allowed(kinds: list[str]) -> list[str]:
    """Those of proxies and namespaces that this machine allows; the rest is said."""
    if "namespaces" in kinds:
        try:
            Namespaces(("a",)).close()
        except NamespaceError as error:
            print(f"skipped namespaces: {error}", file=sys.stderr)
            return [kind for kind in kinds if kind != "namespaces"]
    return kinds


def summary(records: list[dict[str, Any]]) -> str:
    total: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for record in records:
        faults.update(record["faults"])
        numbers = {k: v for k, v in record.items() if isinstance(v, int | float)}
        total.update(numbers)
    counted = ", ".join(f"{name} {total[name]:,}" for name in (*COUNTED, "unresolved", "undone"))
    failed = sum(1 for record in records if record["wrong"])
    by_kind = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
    return (
        f"{len(records)} runs, {failed} failed, {total['took_s'] / 3600:.2f} hours "
        f"({total['stalled_s'] / 3600:.2f} without processor time), "
        f"{sum(faults.values())} faults ({by_kind})\n{counted}"
    )


def main() -> int:
    """Exit status 1 when a seed fails, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m harness.chaos", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="4", help="20 | 17,23 | 100-199")
    parser.add_argument("--nodes", default="3,5", help="sizes of clusters")
    parser.add_argument("--wires", default="proxies", help="proxies,namespaces or one of them")
    parser.add_argument("--faults", default="", help=f"of {','.join(KINDS)}; all when left out")
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults in a run")
    parser.add_argument("--results", type=Path, help="records are added; those there are skipped")
    parser.add_argument("--trace", action="store_true", help="print what was done")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    known = done_before(arguments.results) if arguments.results else {}
    records: list[dict[str, Any]] = []
    wires = allowed(arguments.wires.split(","))
    faults = tuple(kind for kind in arguments.faults.split(",") if kind)
    if not set(faults) <= set(KINDS):
        parser.error(f"--faults are some of {', '.join(KINDS)}")
    plans = [
        Plan(seed, nodes, arguments.seconds, kind, faults)
        for seed in arguments.seeds
        for nodes in map(int, arguments.nodes.split(","))
        for kind in wires
    ]
    keep = arguments.results.parent if arguments.results else None
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    try:
        for number, plan in enumerate(plans, 1):
            if (plan.seed, plan.nodes, plan.wires) in known:
                records.append(known[plan.seed, plan.nodes, plan.wires])
                continue
            if sys.stderr.isatty():
                print(f"\r{number} of {len(plans)}", end="", file=sys.stderr)
            report = run(plan, keep)
            record = record_of(report)
            records.append(record)
            if arguments.results:
                with arguments.results.open("a") as file:
                    file.write(json.dumps(record) + "\n")
            print("\r" + line_of(record), flush=True)
            if arguments.trace:
                print("\n".join(report.trace))
            for text in report.wrong:
                print(f"    {text}")
            if report.wrong:
                again = f"--seeds {plan.seed}, --nodes {plan.nodes} --wires {plan.wires} --trace"
                print(f"    again: python -m harness.chaos {again}")
    except KeyboardInterrupt:
        print("interrupted: every process is ended", file=sys.stderr)
        return 130
    print(summary(records))
    return 1 if any(record["wrong"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
