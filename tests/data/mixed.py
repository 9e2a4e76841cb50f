"""A table as people have them: text, dates, true and false, whole numbers with gaps, NaN, an id, a heavy tail."""

import numpy as np
import pandas as pd


def customers(n_rows, seed=0):
    """16 columns; the segment, of four, shows in the numbers and in the categories."""
    rng = np.random.default_rng(seed)
    segment = rng.integers(4, size=n_rows)
    amounts = {f"amount_{j}": rng.normal(segment * (j - 2), 1.0) for j in range(5)}
    amounts["amount_1"][rng.random(n_rows) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "customer": [f"c{number:07d}" for number in range(n_rows)],
            **amounts,
            "plan": np.array(["free", "basic", "plus", "pro"])[segment],
            "country": pd.Categorical(rng.choice(["AT", "BE", "CH", "DE"], n_rows)),
            "size": pd.Categorical(rng.choice(["s", "m", "l"], n_rows), ["s", "m", "l"], ordered=True),
            "since": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(1000, size=n_rows), unit="D"),
            "seen": [day.date() for day in pd.to_datetime(rng.integers(18000, 19000, n_rows), unit="D")],
            "active": rng.random(n_rows) < 0.2 + 0.2 * segment,
            "visits": pd.array(rng.poisson(3 + 5 * segment), "Int64"),
            "agreed": pd.array(rng.random(n_rows) < 0.5, "boolean"),
            "spent": np.exp(rng.normal(0, 3, n_rows)),
            "segment": segment,
        }
    ).assign(visits=lambda own: own["visits"].mask(rng.random(n_rows) < 0.02))
