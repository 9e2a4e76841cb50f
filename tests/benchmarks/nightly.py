"""Thirty nights of drifting clusters: do names stay, and are splits, births and ends told on the right day?

``python -m tests.benchmarks.nightly`` makes a table for every day, in a folder of its own, and runs one recipe on each,
as cron would. Customers come and go; clusters drift; one comes apart, one is born, one leaves. Then ten nights on which
nothing but the customers changes: there must be no alert.
"""

import argparse
import datetime
import json
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
import pandas as pd

from cehm_dask.pipeline.recipe import parse
from cehm_dask.pipeline.run import run

FIRST = datetime.date(2026, 11, 1)
RECIPE = """\
features: {{path: "{folder}/{{date}}.parquet", id: customer}}
ensemble: {{members: {members}}}
consensus: {{k: {k}}}
output: "{folder}/runs/{{date}}"
export: parquet
follow: previous
alert: {{moved: 0.1, size: 0.5, agreement: 0.05}}
"""


@dataclass
class World:
    """Customers of true classes around centres, day after day."""

    per_class: int
    drift: float
    """Standard deviation of the step that every centre takes in a day, in spreads of a class."""
    churn: float = 0.1
    """Share of the customers of every class that are others the next day."""
    seed: int = 0
    centres: dict = field(default_factory=dict)
    members: dict = field(default_factory=dict)
    news: dict = field(default_factory=dict)
    """What happened on a day, by its number: (what, class)."""

    def __post_init__(self):
        self.rng, self.next_customer, self.day = np.random.default_rng(self.seed), 0, 0
        for name in range(4):
            self.add(name)

    def add(self, name, members=None):
        self.centres[name] = 8.0 * np.array([name % 3, name // 3], float)
        self.members[name] = self.new(self.per_class) if members is None else members

    def new(self, count):
        self.next_customer += count
        return np.arange(self.next_customer - count, self.next_customer)

    def step(self):
        """To the next day."""
        self.day += 1
        for name, own in self.members.items():
            self.centres[name] = self.centres[name] + self.drift * self.rng.normal(size=2)
            left = self.rng.random(len(own)) < self.churn
            self.members[name] = np.concatenate([own[~left], self.new(int(left.sum()))])

    def happen(self, what, name=None):
        fresh = max(self.centres) + 1
        if what == "split":
            own = self.members[name]
            third = self.rng.permutation(len(own)) < len(own) // 3
            self.members[name] = own[~third]
            self.add(fresh, own[third])
        elif what == "birth":
            self.add(fresh)
        else:
            del self.members[name], self.centres[name]
        self.news[self.day] = (what, name if what != "birth" else fresh)

    def table(self):
        """The day's customers, in no order, and the true class of each."""
        rows = [
            pd.DataFrame(self.centres[name] + self.rng.normal(size=(len(own), 2)), columns=["a", "b"]).assign(
                customer=[f"customer-{one}" for one in own], true=name
            )
            for name, own in self.members.items()
        ]
        return pd.concat(rows).iloc[self.rng.permutation(sum(map(len, rows)))].reset_index(drop=True)


def nights(folder, world, days, happenings=(), *, members=8, k="true"):
    """Run the recipe night after night; what is known of each."""
    folder, found, before = Path(folder), [], None
    planned = dict(happenings)
    for number in range(days):
        if number:
            world.step()
        if number in planned:
            world.happen(*planned[number])
        day = FIRST + datetime.timedelta(days=number)
        table = world.table()
        table.drop(columns="true").to_parquet(folder / f"{day}.parquet", index=False)
        wanted = len(world.members) if k == "true" else k
        began = perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(parse(RECIPE.format(folder=folder, members=members, k=wanted)), date=day)
        labels = pd.read_parquet(result.labels).merge(table[["customer", "true"]], on="customer")
        night = {"day": number, "alerts": result.alerts, "seconds": perf_counter() - began, "stay": 0, "kept": 0}
        if before is not None:
            both = before.merge(labels, on=["customer", "true"], suffixes=("_before", ""))
            night |= {"stay": len(both), "kept": int((both["label_before"] == both["label"]).sum())}
        states = {own["name"]: own for own in result.matching["clusters"] if own["state"] != "kept"} if number else {}
        night["told"] = sorted((own["state"], own["name"], own["other"]) for own in states.values())
        night["names"] = {true: int(own["label"].mode()[0]) for true, own in labels.groupby("true")}
        night["moved"] = result.summary()["moved"]
        found.append(night)
        before = labels
    return found


def summary(found, world):
    """Share of names kept, what was told on which day, and which days were wrong."""
    stay, kept = (sum(night[name] for night in found) for name in ("stay", "kept"))
    told = {night["day"]: night["told"] for night in found if night["told"]}
    first = {}
    for night in found:
        for true, name in night["names"].items():
            first.setdefault(true, name)
    changed = sum(name != first[true] for night in found for true, name in night["names"].items())
    return {
        "days": len(found),
        "samples whose class stays": stay,
        "names kept": kept / max(1, stay),
        "classes that changed their name": changed,
        "told": told,
        "happened": world.news,
        "days with alerts": [night["day"] for night in found if night["alerts"]],
        "seconds a night": sum(night["seconds"] for night in found) / len(found),
    }


HAPPENINGS = {10: ("split", 1), 17: ("birth",), 24: ("end", 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-class", type=int, default=500)
    parser.add_argument("--drift", type=float, default=0.1)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--k", default="true", help="true: the number of true classes; auto")
    parser.add_argument("--keep", metavar="FOLDER", help="leave the runs here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, drift, days, happenings in (("drift", given.drift, 30, HAPPENINGS), ("calm", 0.0, 10, {})):
            place = Path(given.keep or folder, name)
            place.mkdir(parents=True)
            world = World(given.per_class, drift)
            found = nights(place, world, days, happenings, members=given.members, k=given.k)
            print(name, json.dumps(summary(found, world), indent=1, default=str))


if __name__ == "__main__":
    main()
