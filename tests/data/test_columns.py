"""One column of labels: categories are the same labels as the texts they stand for."""

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from cehm_dask.data.columns import encode_column

TEXTS = st.sampled_from(["b", "a", "10", "9", "", "-1", "ä", "B cells"])


@given(
    st.lists(st.none() | TEXTS, max_size=12), st.permutations(["b", "a", "10", "9", "", "-1", "ä", "B cells", "none"])
)
def test_categories__give_the_labels_of_their_texts(texts, categories):
    plain = encode_column(pd.Series(texts, dtype=object), "member")
    known, ranks = encode_column(pd.Series(pd.Categorical(texts, categories=categories)), "member")
    np.testing.assert_array_equal(known, plain[0])
    assert known.dtype.kind == "U"
    np.testing.assert_array_equal(ranks, plain[1])


def test_categories__of_numbers_are_numbers():
    known, ranks = encode_column(pd.Series(pd.Categorical([10, 9, None, 10])), "member")
    assert known.tolist() == [9, 10]
    assert ranks.tolist() == [1, 0, -1, 1]
