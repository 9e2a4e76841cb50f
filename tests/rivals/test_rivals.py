"""The rivals: every step against plain numpy on dense matrices, every method against blocks and workers."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from cehm_dask.data.labels import as_labels
from cehm_dask.errors import BudgetError
from cehm_dask.job import Where
from cehm_dask.machine import resident_bytes
from cehm_dask.method import spectral
from cehm_dask.method.points import unit_points
from cehm_dask.method.spectral import refined
from cehm_dask.rivals import (
    METHODS,
    drec,
    eac,
    ec_cms,
    ecpcs_mc,
    metis,
    pairs,
    random_walk,
    rows,
    transfer_cut,
    voting,
    wtq,
)
from cehm_dask.rivals.tree import cut

LINEAR = [name for name, method in METHODS.items() if method.largest_n is None]

every_method = pytest.mark.parametrize("name", METHODS)
linear_method = pytest.mark.parametrize("name", LINEAR)


def make_ensemble(n=240, members=8, classes=3, noise=0.15, missing=0.0, seed=0):
    """Labels whose members split the classes and err now and then, and the true classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, n)
    columns = []
    for _ in range(members):
        pieces = int(rng.integers(1, 4))
        column = truth * pieces + rng.integers(0, pieces, n)
        wrong = rng.random(n) < noise
        column[wrong] = rng.integers(0, classes * pieces, wrong.sum())
        columns.append(rng.permutation(classes * pieces)[column])
    labels = np.stack(columns, axis=1)
    labels[rng.random(labels.shape) < missing] = -1
    return labels, truth


def dense_incidence(labels):
    """B (n × P), and the member of each column: one column for each label that occurs, -1 left out."""
    columns, members = [], []
    for j in range(labels.shape[1]):
        for value in np.unique(labels[:, j][labels[:, j] >= 0]):
            columns.append(labels[:, j] == value)
            members.append(j)
    return np.stack(columns, axis=1).astype(float), np.array(members)


def dense_jaccard(B):
    J = np.zeros((B.shape[1], B.shape[1]))
    for x in range(B.shape[1]):
        for y in range(B.shape[1]):
            if x != y:
                J[x, y] = np.minimum(B[:, x], B[:, y]).sum() / np.maximum(B[:, x], B[:, y]).sum()
    return J


def same_partition(one, other):
    """Whether two labellings agree up to the names of the clusters, in both directions."""
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.fixture(scope="module")
def gappy():
    """A small ensemble with missing labels and two rows without any."""
    labels, _ = make_ensemble(n=90, missing=0.2, seed=3)
    labels[[5, 60]] = -1
    return labels


@pytest.fixture(scope="module")
def gappy_tables(gappy):
    """Its hyperedges, as a method sees them."""
    with rows.counted(as_labels(gappy), 3, Where(block_rows=7, threads=2)) as (engine, hyperedges):
        yield engine, hyperedges


# all methods alike


@every_method
def test_method__finds_clear_classes(name):
    labels, truth = make_ensemble(noise=0.05)
    found = METHODS[name](labels, 3, seed=1)
    assert found.dtype == np.int16
    assert found.shape == (240,)
    agree = sum(np.bincount(truth[found == e]).max() for e in set(found.tolist())) / 240
    assert agree > (0.85 if name == "cspa" else 0.95)  # METIS makes parts of equal size, the classes are not


@every_method
def test_method__same_seed_same_labels(name):
    labels, _ = make_ensemble(missing=0.1)
    assert np.array_equal(METHODS[name](labels, 3, seed=5), METHODS[name](labels, 3, seed=5))


@every_method
def test_method__rows_without_labels_get_minus_one(name, gappy):
    found = METHODS[name](gappy, 3)
    assert np.flatnonzero(found < 0).tolist() == [5, 60]
    assert found.max() < 3


@every_method
def test_method__one_cluster_holds_all(name):
    labels, _ = make_ensemble(n=50)
    assert METHODS[name](labels, 1).tolist() == [0] * 50


@every_method
def test_method__more_clusters_than_samples_are_refused(name):
    with pytest.raises(ValueError, match="n_clusters=5 > n_samples=4"):
        METHODS[name](np.array([[0, 1], [1, 0], [0, 0], [1, 1]]), 5)


@every_method
def test_method__says_who_it_is(name):
    method = METHODS[name]
    assert method.name == name
    assert method.title
    assert method.description
    assert any(character.isdigit() for character in method.reference)


def test_registry__imports_nothing_heavy():
    probe = "import sys, cehm_dask.rivals as r; assert r.METHODS; print('numpy' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# the linear ones: blocks and workers change nothing


@linear_method
@settings(max_examples=8)
@given(
    seed=st.integers(0, 99),
    missing=st.sampled_from([0.0, 0.2]),
    block_rows=st.integers(1, 130),
    threads=st.integers(1, 3),
)
def test_linear_method__same_labels_whatever_the_blocks(name, seed, missing, block_rows, threads):
    labels, _ = make_ensemble(n=120, noise=0.4, missing=missing, seed=seed)
    whole = METHODS[name](labels, 4, seed=seed, where=Where(threads=1))
    split = METHODS[name](labels, 4, seed=seed, where=Where(block_rows=block_rows, threads=threads))
    assert np.array_equal(whole, split)


@linear_method
def test_linear_method__same_labels_from_a_store_that_is_read_again(name, tmp_path, monkeypatch):
    from cehm_dask.data.ingest import ingest

    labels, _ = make_ensemble(n=3000, noise=0.3, missing=0.05)
    np.save(tmp_path / "labels.npy", labels)
    ingest(tmp_path / "labels.npy", str(tmp_path / "ensemble.zarr"))
    in_memory = METHODS[name](labels, 3)
    settle = rows.settle
    monkeypatch.setattr(rows, "settle", lambda *args, **sizes: settle(*args, **{**sizes, "kept": 1 << 40}))
    assert np.array_equal(METHODS[name](str(tmp_path / "ensemble.zarr"), 3), in_memory)


@linear_method
def test_linear_method__same_labels_on_a_cluster(name, two_processes):
    labels, _ = make_ensemble(n=2000, noise=0.3, missing=0.05)
    here = METHODS[name](labels, 3)
    there = METHODS[name](labels, 3, where=Where(client=two_processes, block_rows=300))
    assert np.array_equal(here, there)


@linear_method
def test_linear_method__too_little_memory_is_refused_before_work(name):
    labels, _ = make_ensemble(n=50)
    with pytest.raises(BudgetError, match="projected"):
        METHODS[name](labels, 3, where=Where(memory="1MiB"))


# steps against dense matrices


def test_weighted_table__is_the_dense_product(gappy, gappy_tables):
    engine, hyperedges = gappy_tables
    B, _ = dense_incidence(gappy)
    degrees = np.random.default_rng(0).uniform(1, 2, B.shape[1])
    d = B @ degrees
    expected = B.T @ (np.where(d > 0, 1 / np.where(d > 0, d, 1), 0)[:, None] * B)
    assert np.allclose(rows.weighted_table(engine, hyperedges, degrees), expected, rtol=1e-7)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_affinity__is_that_of_the_transfer_cut(missing):
    labels, _ = make_ensemble(n=80, missing=missing)
    B, _ = dense_incidence(labels)
    with rows.counted(as_labels(labels), 3, Where()) as (engine, hyperedges):
        table = transfer_cut.affinity(engine, hyperedges)
        sweeps = engine.sweeps
    d = np.maximum(B.sum(axis=1), 1e-10)
    assert np.allclose(table, B.T @ (B / d[:, None]), rtol=1e-7)
    assert sweeps == (1 if missing == 0 else 2)  # without gaps the intersections say it all


def test_leading_vectors__are_those_of_the_normalised_graph():
    rng = np.random.default_rng(0)
    A = rng.random((12, 12))
    A = A + A.T
    values, vectors, degrees = spectral.leading_vectors(A, 4)
    N = A / np.sqrt(np.outer(A.sum(1), A.sum(1)))
    assert np.allclose(N @ vectors, vectors * values)
    assert np.allclose(values, np.sort(np.linalg.eigvalsh(N))[::-1][:4])
    assert np.allclose(degrees, A.sum(axis=1))


def dense_transfer_cut(B, k):
    """Embedding by the description of U-SENC, on dense matrices."""
    d = np.maximum(B.sum(axis=1), 1e-10)
    W = B.T @ (B / d[:, None])
    D = W.sum(axis=1)
    _, vectors = np.linalg.eigh(W / np.sqrt(np.outer(D, D)))
    E = (B / d[:, None]) @ (vectors[:, ::-1][:, :k] / np.sqrt(D)[:, None])
    return E / (np.linalg.norm(E, axis=1, keepdims=True) + 1e-10)


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_usenc__is_a_k_means_optimum_of_the_dense_embedding(missing):
    labels, _ = make_ensemble(n=300, noise=0.3, missing=missing, seed=2)
    labels = labels[(labels >= 0).any(axis=1)]
    found = METHODS["usenc"](labels, 3, seed=0)
    E = dense_transfer_cut(dense_incidence(labels)[0], 3)
    centres = np.stack([E[found == e].mean(axis=0) for e in range(3)])
    distances = ((E[:, None] - centres) ** 2).sum(axis=2)
    assert np.array_equal(distances.argmin(axis=1), found)


def test_usenc__equals_a_dense_run_with_scikit_learns_k_means():
    from sklearn.cluster import KMeans

    labels, _ = make_ensemble(n=300, noise=0.2, seed=4)
    E = dense_transfer_cut(dense_incidence(labels)[0], 3)
    assert same_partition(METHODS["usenc"](labels, 3), KMeans(3, n_init=5, random_state=0).fit_predict(E))


def dense_local_weights(labels):
    """Weights of LWGP by the formula: entropy in bits over each member's clusters, among the labels there are."""
    B, _ = dense_incidence(labels)
    weights = []
    for own in B.T.astype(bool):
        entropy, speaking = 0.0, 0
        for member in labels[own].T:
            said = member[member >= 0]
            speaking += len(said) > 0
            for value in set(said.tolist()):
                p = np.mean(said == value)
                entropy -= p * np.log2(p)
        weights.append(np.exp(-entropy / (0.4 * speaking)))
    return np.array(weights)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_local_weights__are_those_of_the_formula(missing):
    labels, _ = make_ensemble(n=90, missing=missing, seed=3)
    if missing:
        labels[:60, 4] = -1  # silent about the whole of some clusters
        labels[:20, 5] = 50
        labels[20:, 5] = np.where(labels[20:, 5] == 50, 0, labels[20:, 5])
    with rows.counted(as_labels(labels), 3, Where()) as (_, hyperedges):
        found = spectral.local_weights(hyperedges)
    assert np.allclose(found, dense_local_weights(labels))


def test_local_weights__by_hand():
    # {0, 1, 2, 3} is halved by the other member: one bit over two members. Its halves are certain.
    labels = np.array([[0, 0], [0, 0], [0, 1], [0, 1], [1, 2]])
    with rows.counted(as_labels(labels), 2, Where()) as (_, hyperedges):
        found = spectral.local_weights(hyperedges)
    assert np.allclose(found, [np.exp(-1 / (0.4 * 2)), 1, 1, 1, 1])


@pytest.mark.parametrize("last", [1e-7, 1e-3, 5.0])
def test_affinity__of_weighted_hyperedges_is_the_dense_product(gappy, gappy_tables, last):
    engine, hyperedges = gappy_tables
    B, _ = dense_incidence(gappy)
    w = last ** np.random.default_rng(0).random(B.shape[1])  # from 1 to there
    d = (B * w).sum(axis=1)
    expected = (B * w).T @ ((B * w) * np.where(d > 0, 1 / np.where(d > 0, d, 1), 0)[:, None])
    assert np.allclose(transfer_cut.affinity(engine, hyperedges, w), expected, rtol=1e-7, atol=0)
    assert np.allclose(transfer_cut.affinity(engine, hyperedges, csr_array(np.diag(w))), expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_lwgp__is_a_k_means_optimum_of_the_dense_embedding(missing):
    labels, _ = make_ensemble(n=300, noise=0.3, missing=missing, seed=2)
    labels = labels[(labels >= 0).any(axis=1)]
    found = METHODS["lwgp"](labels, 3, seed=0)
    E = dense_transfer_cut(dense_incidence(labels)[0] * dense_local_weights(labels), 3)
    centres = np.stack([E[found == e].mean(axis=0) for e in range(3)])
    assert np.array_equal(((E[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1), found)


def test_hbgf__is_a_k_means_optimum_of_samples_and_clusters_together():
    labels, _ = make_ensemble(n=200, noise=0.3, seed=6)
    found = METHODS["hbgf"](labels, 3)
    B, _ = dense_incidence(labels)
    n, P = B.shape
    W = np.block([[np.zeros((n, n)), B], [B.T, np.zeros((P, P))]])
    d = W.sum(axis=1)
    _, vectors = np.linalg.eigh(W / np.sqrt(np.outer(d, d)))
    U = vectors[:, ::-1][:, :3]
    U = U / np.linalg.norm(U, axis=1, keepdims=True)
    # Clusters go where their samples' centres are nearest; a few rounds settle which.
    assigned = np.concatenate((found, np.full(P, -1)))
    centres = np.stack([U[:n][found == e].mean(axis=0) for e in range(3)])
    for _ in range(50):
        assigned = ((U[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        centres = np.stack([U[assigned == e].mean(axis=0) for e in range(3)])
    assert np.array_equal(assigned[:n], found)


def test_points__sum_exactly_in_any_order():
    points = unit_points(np.random.default_rng(0).normal(size=(5000, 3))).astype(np.float64)
    order = np.random.default_rng(1).permutation(5000)
    forward, other = 0.0, 0.0
    for a, b in zip(points[0], points[0][order], strict=True):
        forward, other = forward + a, other + b
    assert forward == other
    assert np.allclose(np.linalg.norm(points, axis=0), 1.0, atol=1e-6)


def test_jaccard__is_the_dense_one(gappy, gappy_tables):
    _, hyperedges = gappy_tables
    assert np.allclose(spectral.jaccard(hyperedges), dense_jaccard(dense_incidence(gappy)[0]))


@pytest.mark.parametrize("method", ["wct", "wtq"])
def test_link_based__refined_matrix_is_that_of_the_definition(gappy, gappy_tables, method):
    _, hyperedges = gappy_tables
    B, members = dense_incidence(gappy)
    w = dense_jaccard(B)
    w[members[:, None] == members[None, :]] = 0.0
    P = len(w)
    value = np.zeros((P, P))
    for x in range(P):
        for y in range(P):
            if x != y and members[x] == members[y]:
                for z in range(P):
                    if method == "wct":
                        value[x, y] += min(w[x, z], w[y, z])
                    elif w[x, z] > 0 and w[y, z] > 0:
                        value[x, y] += 1 / w[z].sum()
    expected = 0.9 * value / value.max() + np.eye(P)
    found = refined(hyperedges, spectral.weighted_connected_triples if method == "wct" else wtq.weighted_triple_quality)
    assert np.allclose(found.toarray(), expected)


@pytest.mark.parametrize("method", ["wct", "wtq"])
def test_link_based__is_a_k_means_optimum_of_the_dense_embedding(method):
    labels, _ = make_ensemble(n=200, noise=0.3, missing=0.05, seed=8)
    found = METHODS[method](labels, 3)
    with rows.counted(as_labels(labels), 3, Where()) as (_, hyperedges):
        similarity = spectral.weighted_connected_triples if method == "wct" else wtq.weighted_triple_quality
        mix = refined(hyperedges, similarity)
    E = dense_transfer_cut(dense_incidence(labels)[0] @ mix.toarray(), 3)
    centres = np.stack([E[found == e].mean(axis=0) for e in range(3)])
    assert np.array_equal(((E[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1), found)


@pytest.mark.parametrize("density", [0.02, 0.6])
@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_trajectory_similarity__is_the_sum_over_all_steps(density, steps):
    rng = np.random.default_rng(0)
    weights = np.where(rng.random((60, 60)) < density, rng.random((60, 60)), 0.0)
    weights = np.maximum(weights, weights.T)
    weights[7] = weights[:, 7] = 0.0
    P = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    R = sum(np.linalg.matrix_power(P, t) @ np.linalg.matrix_power(P, t).T for t in range(1, steps + 1))
    alone = ~weights.any(axis=1)
    expected = R / np.sqrt(np.outer(np.where(alone, 1, R.diagonal()), np.where(alone, 1, R.diagonal())))
    expected[alone] = expected[:, alone] = 0.25
    found = random_walk.trajectory_similarity(random_walk.transitions(weights.copy()), steps, 0.25)
    assert np.allclose(found, expected, atol=1e-12)


def test_normalised_cut__separates_what_hardly_touches():
    similarity = np.full((9, 9), 1e-3)
    for part in (slice(0, 2), slice(2, 5), slice(5, 9)):
        similarity[part, part] = 1.0
    groups = ecpcs_mc.normalised_cut(similarity, 3)
    assert same_partition(groups, np.array([0, 0, 1, 1, 1, 2, 2, 2, 2]))


def test_shares__a_group_has_one_vote_in_all():
    votes = rows.shares(np.array([0, 2, 2, 0, 2]), 3)
    assert votes.sum(axis=0).tolist() == pytest.approx([1.0, 0.0, 1.0])
    assert votes[0].tolist() == [0.5, 0.0, 0.0]


def test_voting__by_hand():
    # Member 0 (2 clusters) is the reference: a = {0, 1, 2}, b = {3, 4}. Of the others, member 1 has the higher
    # entropy (3 clusters) and comes first: {0, 1} → a, {2, 3} → half a, half b, {4} → b. So samples have got
    # a: 2, 2, 1.5, .5, 0 and b: 0, 0, .5, 1.5, 2, and member 2's {0, 1} and {2, 3, 4} follow.
    labels = np.array([[0, 0, 0], [0, 0, 0], [0, 1, 1], [1, 1, 1], [1, 2, 1]])
    with rows.counted(as_labels(labels), 2, Where()) as (_, hyperedges):
        votes = voting.cumulative_votes(hyperedges, 2)
    third = 2.0 / 6.0
    expected = [[1, 0], [0, 1], [1, 0], [0.5, 0.5], [0, 1], [1, 0], [third, 1 - third]]
    assert np.allclose(votes, expected)
    assert METHODS["voting"](labels, 2).tolist() == [0, 0, 0, 1, 1]


def test_voting__a_reference_with_too_many_clusters_is_joined_to_k():
    # All members have four clusters; in the others 0 and 1 are mixed, as are 2 and 3.
    first = np.repeat([0, 1, 2, 3], 6)
    rng = np.random.default_rng(0)
    others = [np.where(first < 2, rng.integers(0, 2, 24), rng.integers(2, 4, 24)) for _ in range(4)]
    found = METHODS["voting"](np.stack([first, *others], axis=1), 2)
    assert same_partition(found, (first >= 2).astype(int))


def test_sec__is_a_fixed_point_of_the_dense_weighted_k_means():
    labels, _ = make_ensemble(n=300, noise=0.3, missing=0.1, seed=9)
    labels = labels[(labels >= 0).any(axis=1)]
    found = METHODS["sec"](labels, 3)
    B, _ = dense_incidence(labels)
    w = B @ B.sum(axis=0)
    X = B / w[:, None]
    centres = np.stack([np.average(X[found == e], axis=0, weights=w[found == e]) for e in range(3)])
    distances = ((X[:, None] - centres) ** 2).sum(axis=2)
    assert np.allclose(distances[np.arange(len(X)), found], distances.min(axis=1), rtol=1e-9)


# methods that compare every two samples


def test_largest_n__is_what_the_methods_refuse_by():
    for name, method in METHODS.items():
        module = importlib.import_module(f"cehm_dask.rivals.{name}")
        assert method.largest_n == getattr(module, "LARGEST", None)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.largest_n])
def test_quadratic_method__more_samples_than_it_takes_are_refused_with_their_bytes(name):
    n = METHODS[name].largest_n + 1
    labels = np.stack([np.arange(n) % 173, np.arange(n) // 173], axis=1)  # all rows differ
    with pytest.raises(BudgetError, match=rf"{METHODS[name].title}: {n:,} .*GiB.*usenc"):
        METHODS[name](labels, 3)
    allowed = resident_bytes() + (64 << 20)  # enough for the labels, too little for any pairs of 4,000
    with pytest.raises(BudgetError, match=r"memory=.* allowed < .* projected .*4,000"):
        METHODS[name](labels[:4000], 3, where=Where(memory=allowed))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.distinct])
def test_microclusters__samples_with_the_same_labels_cost_nothing(name):
    labels, truth = make_ensemble(n=60, noise=0.1)
    many = np.tile(labels, (250, 1))
    assert len(many) > METHODS[name].largest_n
    found = METHODS[name](many, 3)
    assert np.array_equal(found[:60], found[-60:])
    assert same_partition(found[:60][truth >= 0], found[60:120])


def samples_of(labels, distinct=False):
    return pairs.admitted("it", as_labels(labels), 2, Where(), largest=10**4, bytes_a_pair=1, distinct=distinct)


def test_co_association__by_hand():
    labels = np.array([[0, 0, 1], [0, 1, 1], [1, -1, 1]])
    expected = [[1, 2 / 3, 1 / 2], [2 / 3, 1, 1 / 2], [1 / 2, 1 / 2, 1]]
    assert np.allclose(samples_of(labels).co_association(), expected)


def test_co_association__is_that_of_all_pairs(gappy):
    known = gappy[(gappy >= 0).any(axis=1)]
    weights = np.random.default_rng(0).random(dense_incidence(gappy)[0].shape[1])
    B, _ = dense_incidence(known)
    expected = np.eye(len(known))
    for a in range(len(known)):
        for b in range(len(known)):
            both = ((known[a] >= 0) & (known[b] >= 0)).sum()
            if a != b and both:
                expected[a, b] = (B[a] * B[b] * weights).sum() / both
    assert np.allclose(samples_of(gappy).co_association(weights), expected)


def test_eac__is_average_linkage_of_the_dense_co_association(gappy):
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    samples = samples_of(gappy)
    distance = squareform(1 - samples.co_association(), checks=False)
    assert np.allclose(eac.distances(samples), distance)
    tree = fcluster(linkage(distance, "average"), 3, "maxclust")
    assert same_partition(METHODS["eac"](gappy, 3)[samples.back >= 0], tree)


@settings(max_examples=60)
@given(n=st.integers(2, 40), levels=st.integers(1, 1000), k=st.integers(1, 45), seed=st.integers(0, 999))
def test_tree__exactly_k_branches_though_heights_tie(n, levels, k, seed):
    from scipy.cluster.hierarchy import fcluster, is_monotonic, linkage

    heights = np.random.default_rng(seed).integers(0, levels, n * (n - 1) // 2).astype(float)
    tree = linkage(heights, "average")
    found = cut(tree, k)
    assert is_monotonic(tree)
    assert len(set(found.tolist())) == min(n, k)
    assert list(dict.fromkeys(found.tolist())) == list(range(min(n, k)))  # numbered by the first leaf
    if len(np.unique(tree[:, 2])) == n - 1:
        assert same_partition(found, fcluster(tree, k, "maxclust"))


def dense_trajectories(labels):
    """PTA's steps, one after the other, on loops and powers; needs labels without gaps."""
    distinct, counts = np.unique(labels, axis=0, return_counts=True)
    n = len(distinct)
    S = (distinct[:, None, :] == distinct[None, :, :]).mean(axis=2)
    np.fill_diagonal(S, 0.0)
    K = min(20, int(np.floor(np.sqrt(n) / 2)))
    for i in range(n):
        S[i, S[i] < np.sort(S[i])[::-1][K - 1]] = 0.0
    S = np.maximum(S, S.T) * counts[None, :]
    P = S / S.sum(axis=1, keepdims=True)
    R = sum(np.linalg.matrix_power(P, t) @ np.linalg.matrix_power(P, t).T for t in range(1, K + 1))
    return distinct, R / np.sqrt(np.outer(R.diagonal(), R.diagonal()))


@pytest.fixture(scope="module")
def repeated():
    """An ensemble of few members, in which many rows of labels occur more than once."""
    return make_ensemble(n=300, members=4, noise=0.15, seed=5)[0]


def test_pta__is_average_linkage_of_the_trajectories(repeated):
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    distinct, similarity = dense_trajectories(repeated)
    assert len(distinct) < 250
    tree = fcluster(linkage(squareform(1 - similarity, checks=False), "average"), 3, "maxclust")
    row = (repeated[:, None, :] == distinct).all(axis=2).argmax(axis=1)
    assert same_partition(METHODS["pta"](repeated, 3), tree[row])


def test_ptgp__is_a_k_means_optimum_of_the_dense_cut(repeated):
    distinct, similarity = dense_trajectories(repeated)
    B, _ = dense_incidence(distinct)
    E = dense_transfer_cut(similarity @ B / B.sum(axis=0), 3)
    row = (repeated[:, None, :] == distinct).all(axis=2).argmax(axis=1)
    found = METHODS["ptgp"](repeated, 3)
    micro = np.array([found[row == r][0] for r in range(len(distinct))])
    assert np.array_equal(micro[row], found)
    centres = np.stack([E[micro == e].mean(axis=0) for e in range(3)])
    assert np.array_equal(((E[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1), micro)


def test_drec__representation_solves_the_sylvester_equations(repeated):
    from scipy.linalg import solve_sylvester

    B, _ = dense_incidence(np.unique(repeated, axis=0))
    X = B.T
    D = np.ones(len(B))
    for _ in range(5):
        Z = solve_sylvester(X.T @ X, np.diag(100 / D), X.T @ X)
        D = 1 / (2 * np.linalg.norm(X @ Z - X, axis=0))
    U, S, _ = np.linalg.svd(Z)
    keep = 1e-4 * S[0] < S
    U = U[:, keep] * np.sqrt(S[keep])
    U /= np.linalg.norm(U, axis=1, keepdims=True)
    found = drec.representation(B)
    assert np.allclose(found @ found.T, U @ U.T, atol=1e-8)


def test_ec_cms__cluster_weights_by_hand():
    # The second member splits the first's clusters 3 : 1 and 0 : 2; the first splits the second's 3 : 0 and 1 : 2.
    labels = np.array([[0, 0], [0, 0], [0, 0], [0, 1], [1, 1], [1, 1]])
    quarter = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25))
    third = -(1 / 3 * np.log2(1 / 3) + 2 / 3 * np.log2(2 / 3))
    expected = np.exp(-np.array([quarter, 0, 0, third]) / (0.4 * 2))
    assert np.allclose(ec_cms.cluster_weights(samples_of(labels)), expected)


def test_ec_cms__enhanced_matrix_nears_the_optimum_of_its_problem(monkeypatch):
    """Solved to the end, the rounds meet the conditions of an optimum of the stated problem."""
    labels, _ = make_ensemble(n=40, noise=0.2)
    A = samples_of(labels).co_association()
    H = np.where(A >= 0.8, A, 0.0)
    np.fill_diagonal(H, 0.0)
    monkeypatch.setattr(ec_cms, "TOLERANCE", 1e-12)
    monkeypatch.setattr(ec_cms, "ROUNDS", 20_000)
    C = ec_cms.enhance(A, H)
    E = A - C
    assert np.abs(E[H > 0]).max() < 1e-6  # confident pairs keep their value
    assert C.min() > -1e-6
    assert C.max() < 1 + 1e-6
    assert np.abs(C - C.T).max() < 1e-6
    # ½λ‖E‖² + tr(CᵀΦC) rises whichever way one allowed pair is moved.
    laplacian = np.diag(H.sum(axis=1)) - H

    def objective(C):
        return 0.5 * 0.4 * ((A - C) ** 2).sum() + np.trace(C.T @ laplacian @ C)

    least = objective(C)
    for i, j in [(0, 1), (3, 9), (20, 31)]:
        for step in (1e-3, -1e-3):
            moved = C.copy()
            moved[i, j] += step
            moved[j, i] = moved[i, j]
            if H[i, j] == 0 and 0 <= moved[i, j] <= 1:
                assert objective(moved) > least


def test_metis__is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"pip install 'cehm-dask\[metis\]'"):
        METHODS["mcla"](make_ensemble(n=30)[0], 3)


def test_metis__cuts_a_graph_where_it_is_thin():
    weights = np.ones((12, 12), np.int32)
    weights[:6, :6] = weights[6:, 6:] = 100
    assert same_partition(metis.balanced_parts(weights, 2, seed=0), np.repeat([0, 1], 6))
