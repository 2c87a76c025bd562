"""Search by cosine: exact, and the same answers with faiss and without."""

import pytest
import torch

from eqco.evaluation import similarity
from eqco.evaluation.similarity import VectorIndex, group_pairs
from eqco.runtime.errors import InputError


def vectors_with_copies(count=200, dim=16, seed=0):
    """Random vectors, of which every fourth is also there scaled, and one ten times."""
    vectors = torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))
    vectors[1::4] = 3 * vectors[0::4]
    vectors[100:110] = vectors[100]
    return vectors


@pytest.fixture(params=[False, True], ids=["exact", "faiss"])
def index(request):
    if request.param:
        pytest.importorskip("faiss", exc_type=ImportError)
    return VectorIndex(vectors_with_copies(), use_faiss=request.param)


def test_the_nearest_are_those_of_a_loop(index):
    vectors = vectors_with_copies().double()
    query = torch.randn(16, generator=torch.Generator().manual_seed(1))
    cosines = torch.nn.functional.cosine_similarity(vectors, query.double()[None])
    found = index.search(query, 12)
    expected = sorted(range(200), key=lambda place: -float(cosines[place]))[:12]
    assert sorted(place for place, _ in found)[:3] == sorted(expected)[:3]
    for (_, cosine), place in zip(found, expected, strict=True):
        assert cosine == pytest.approx(float(cosines[place]), abs=1e-6)


def test_of_equal_ones_the_first_come_first(index):
    query = vectors_with_copies()[105]
    assert [place for place, _ in index.search(query, 4)] == [100, 101, 102, 103]


def test_pairs_are_those_of_two_loops(index):
    vectors = torch.nn.functional.normalize(vectors_with_copies().double(), dim=1)
    table = vectors @ vectors.T
    expected = {(i, j) for i in range(200) for j in range(i + 1, 200) if table[i, j] > 0.7}
    found = index.pairs(0.7)
    assert {(i, j) for i, j, _ in found} == expected
    assert [cosine for *_, cosine in found] == sorted((c for *_, c in found), reverse=True)


def test_faiss_changes_no_answer():
    pytest.importorskip("faiss", exc_type=ImportError)
    vectors = vectors_with_copies(2000, seed=2)
    plain, fast = (VectorIndex(vectors, use_faiss=use) for use in (False, True))
    for number in range(0, 200, 7):
        assert plain.search(vectors[number], 15) == fast.search(vectors[number], 15)
    assert plain.pairs(0.75) == fast.pairs(0.75)


def test_more_than_there_are_is_all(index):
    assert len(index.search(torch.ones(16), 500)) == 200


def test_what_cannot_be_searched_is_refused(index, monkeypatch):
    with pytest.raises(InputError, match="count=0; it must be at least 1"):
        index.search(torch.ones(16), 0)
    with pytest.raises(InputError, match=r"vectors of shape \(0, 4\)"):
        VectorIndex(torch.empty(0, 4))
    monkeypatch.setattr(similarity, "MOST_PAIRS", 10)
    with pytest.raises(InputError, match=r"more than 10 pairs .* Raise --at-least"):
        index.pairs(0.1)


def test_a_chain_of_pairs_is_not_one_group():
    """1 is near 0 and near 2, but 2 is not near 0."""
    pairs = [(0, 1, 0.99), (1, 2, 0.98), (2, 3, 0.97)]
    assert group_pairs(pairs) == [[(0, 1.0), (1, 0.99)], [(2, 1.0), (3, 0.97)]]
