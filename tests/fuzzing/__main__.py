"""Fuzz some or all formats; print a table, and a command that repeats each find."""

import argparse
import os
import re
import shlex
import sys
import traceback
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each thread reserves address space

from dask_tiled.formats.registry import _MODULES
from fuzzing import campaign as campaigns
from fuzzing import planted, structures, trial

HEAD = f"{'format':11} {'mutations':>9} {'opened':>7} {'refused':>7} {'slowest':>9} {'peak':>9}"


def row(result):
    finds = ", ".join(f"{count} {kind}" for kind, count in campaigns.kinds(result).items())
    words = "FAIL: " + finds if finds else "PASS"
    return (
        f"{result.format:11} {result.count:9} {result.opened:7} {result.refused:7}"
        f" {result.slowest:7.2f} s {result.peak >> 20:5} MiB  {words}"
    )


def report(result, seed_number):
    print(row(result), flush=True)
    groups = {}
    for find in result.finds:
        alike = re.sub(r"\S*/\S+|\d+|'[^']*'", "#", find.text)[: 60 * (find.kind != "stderr")]
        groups.setdefault((find.kind, alike), []).append(find)
    for (kind, _), finds in groups.items():
        print(f"    {len(finds)} x {kind}: {finds[0].text[:300]}")
        if kind == "death":
            print(finds[0].detail)
        print(f"        {command(finds[0], seed_number)}", flush=True)
    if result.doubtful:
        print(f"    not repeated: {campaigns.Counter(f.kind for f in result.doubtful)}")


def command(find, seed_number):
    return (
        f"PYTHONPATH=tests python -m fuzzing {shlex.quote(find.format)} --seed {seed_number}"
        f" --only {find.number}{' --structures' * (structures.SHARE == 1)}"
    )


def replay(format, seed_number, number, keep):
    """Run one mutation in this process, print all about it, and keep its files."""
    others = campaigns.in_a_child(campaigns.samples)
    campaign = campaigns.Campaign(format, seed_number, [number], others, patience=600)
    seed, mutation, _ = campaigns.make(format, seed_number, number, campaign.seeds, others)
    folder = Path(keep)
    campaigns.write(folder, seed, mutation.files, folder / "whole")
    print(f"{seed.name}, in {folder}")
    print("\n".join(mutation.notes), flush=True)
    outcome = campaign.attempt(number)
    campaign.close()
    print("opened" if outcome.opened else "refused", f"{outcome.seconds:.3f} s", outcome.memory)
    print(outcome.error)
    for kind, text in outcome.finds:
        print(f"{kind}: {text}")
    return 1 if outcome.finds else 0


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("formats", nargs="*", help='by default all; "hdf5 delmic" for a variant')
    parser.add_argument("--count", type=int, default=10_000, help="mutations of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the mutations")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="formats in parallel")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds until a child counts as hanging"
    )
    parser.add_argument("--slow", type=float, default=1, help="seconds that opening may take")
    parser.add_argument(
        "--structures",
        action="store_true",
        help="only headers drawn with hypothesis, where possible",
    )
    parser.add_argument("--only", type=int, help="run one mutation, and print all about it")
    parser.add_argument("--keep", default="fuzzed", help="folder for the files of --only")
    given = parser.parse_args()
    if "planted" in given.formats:
        planted.plant()
    trial.SLOW = given.slow
    if given.structures:
        structures.SHARE = 1
    campaigns.prepare()
    if given.only is not None:
        return replay(given.formats[0], given.seed, given.only, given.keep)
    print(HEAD, flush=True)
    results = campaigns.run(
        given.formats or _MODULES,
        given.seed,
        range(given.first, given.first + given.count),
        patience=given.patience,
        jobs=given.jobs,
        report=lambda result: report(result, given.seed),
    )
    failed = [result.format for result in results if result.finds]
    print("FAIL: " + ", ".join(failed) if failed else "PASS")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        sys.exit(2)
