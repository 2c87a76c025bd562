"""An index of photos: finds a photo and its copies, knows its encoder, names what is missing."""

import json
import shutil

import numpy as np
import pytest
import torch
from photos import save_photos
from PIL import Image

import eqco
from eqco.assembly import search
from eqco.evaluation import embedding
from eqco.evaluation.features import fingerprint
from eqco.runtime.errors import InputError


def stop(*arguments):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty photos, a copy of one that was cut and saved again, and a file that is none."""
    folder = save_photos(tmp_path_factory.mktemp("photos"), 40)
    with Image.open(folder / "0007.jpg") as image:
        image.crop((2, 2, image.width - 2, image.height - 2)).save(folder / "copy.jpg", quality=60)
    (folder / "broken.jpg").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def encoder(light_run):
    return eqco.load(light_run)


@pytest.fixture(scope="module")
def index(encoder, photos, tmp_path_factory):
    return encoder.index(photos, tmp_path_factory.mktemp("index") / "photos")


def test_a_photo_is_most_like_itself_and_then_like_its_copy(index, photos):
    first, second, *_ = index.search(photos / "0007.jpg", count=5)
    assert (first.name, second.name) == ("0007.jpg", "copy.jpg")
    assert first.similarity == pytest.approx(1, abs=1e-5)


def test_pictures_and_arrays_are_searched_for_as_files_are(index, photos):
    file = photos / "0003.jpg"
    with Image.open(file) as image:
        picture = image.convert("RGB")
    found = index.search(file, 3)
    assert index.search(picture, 3) == found
    assert index.search(np.asarray(picture), 3) == found


def test_a_cut_copy_is_a_near_duplicate_of_its_original(index):
    (group,) = index.duplicates()
    assert {match.name for match in group} == {"0007.jpg", "copy.jpg"}


def test_a_limit_by_hand_is_the_encoders_alone(index):
    assert index.duplicates(at_least=1.0) == []
    assert sum(map(len, index.duplicates(at_least=0.5))) > 2
    with pytest.raises(InputError, match="at_least=0; it must be greater than 0"):
        index.duplicates(at_least=0)


def test_an_encoder_that_does_not_know_cut_photos_again_says_so(index, monkeypatch):
    monkeypatch.setitem(index.facts, "copies", -0.2)
    with pytest.raises(InputError, match=r"does not know its own photos again .* --at-least 0\.9"):
        index.duplicates()


def test_what_cannot_be_read_is_listed(index):
    assert len(index) == 41
    assert "broken.jpg\t" in (index.path / "unreadable.txt").read_text()


def test_an_index_opens_again_and_with_the_answers_it_had(index, photos):
    opened = eqco.open_index(index.path)
    assert opened.search(photos / "0003.jpg") == index.search(photos / "0003.jpg")
    assert repr(opened) == f"PhotoIndex({str(index.path)!r}, 41 photos of {photos})"


def test_photos_are_searched_for_in_the_precision_of_the_index(encoder, photos, tmp_path):
    index = encoder.index(photos, tmp_path / "index", precision="bfloat16")
    seen = []
    hook = encoder.backbone.register_forward_hook(lambda *given: seen.append(given[-1].dtype))
    index.search(photos / "0003.jpg")
    eqco.open_index(index.path, encoder=encoder).search(photos / "0003.jpg")
    del index.facts["precision"]  # as in an index of before it was kept
    index.search(photos / "0003.jpg")
    hook.remove()
    assert seen == [torch.bfloat16, torch.bfloat16, torch.float32]


def test_similarities_of_copies_are_measured_in_the_precision_of_the_index(
    encoder, photos, tmp_path
):
    seen = set()
    hook = encoder.backbone.register_forward_hook(lambda *given: seen.add(given[-1].dtype))
    encoder.index(photos, tmp_path / "index", precision="bfloat16")
    hook.remove()
    assert seen == {torch.bfloat16}


def test_with_faiss_and_without_the_answers_are_the_same(index, photos):
    pytest.importorskip("faiss", exc_type=ImportError)
    plain, fast = (eqco.open_index(index.path, use_faiss=use) for use in (False, True))
    assert plain.search(photos / "0011.jpg", 20) == fast.search(photos / "0011.jpg", 20)
    assert plain.duplicates(0.9) == fast.duplicates(0.9)


def test_another_encoder_is_refused(index, encoder, light_run, tmp_path):
    other = eqco.load(light_run)
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    with pytest.raises(InputError, match=r"was made with .*, and the encoder that was given has"):
        eqco.open_index(index.path, encoder=other)
    facts = json.loads((index.path / "index.json").read_text())
    assert facts["fingerprint"] == fingerprint(encoder.backbone)
    shutil.copytree(index.path, tmp_path / "index")
    changed = {**facts, "fingerprint": "0" * 16}
    (tmp_path / "index" / "index.json").write_text(json.dumps(changed))
    with pytest.raises(InputError, match="has other weights"):
        eqco.open_index(tmp_path / "index").search(np.zeros((8, 8, 3), np.uint8))


def test_photos_that_were_moved_are_known_and_found_in_their_new_place(index, photos, tmp_path):
    moved = eqco.open_index(index.path, photos=tmp_path / "elsewhere")
    (match, *_) = moved.search(photos / "0001.jpg", 1)
    assert moved.is_moved(match)
    with pytest.raises(InputError, match="it is not there any more"):
        moved.picture(match)
    with pytest.raises(InputError, match=r"photos are not in .* any more, the first being"):
        moved.duplicates()
    shutil.copytree(photos, tmp_path / "elsewhere")
    assert not moved.is_moved(match)
    assert moved.picture(match).size == index.picture(match).size


def test_an_index_is_replaced_only_if_asked(index, encoder, photos, tmp_path):
    with pytest.raises(InputError, match=r"holds an index\. Pass --overwrite"):
        encoder.index(photos, index.path)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds letter\.txt and is no index"):
        encoder.index(photos, tmp_path)
    with pytest.raises(InputError, match=r"holds no index\. Make one with: eqco index"):
        eqco.open_index(tmp_path)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_index_stopped_before_its_end_is_made_by_the_same_call(
    overwrite, index, encoder, photos, tmp_path, monkeypatch
):
    out = tmp_path / "index"
    if overwrite:
        shutil.copytree(index.path, out)
    with monkeypatch.context() as stopped:
        stopped.setattr(search, "similarity_of_copies", stop)
        with pytest.raises(KeyboardInterrupt):
            encoder.index(photos, out, overwrite=overwrite)
    assert sorted(each.name for each in out.iterdir()) == ["unreadable.txt", "vectors.npz"]
    with pytest.raises(InputError, match=r"holds no index"):
        eqco.open_index(out)
    again = encoder.index(photos, out, overwrite=overwrite)
    assert again.facts == index.facts
    assert again.search(photos / "0003.jpg") == index.search(photos / "0003.jpg")


def test_an_index_stays_until_the_vectors_of_its_successor_are_there(
    index, encoder, photos, tmp_path, monkeypatch
):
    out = shutil.copytree(index.path, tmp_path / "index")
    monkeypatch.setattr(embedding, "compute_part", stop)
    with pytest.raises(KeyboardInterrupt):
        encoder.index(photos, out, overwrite=True)
    opened = eqco.open_index(out)
    assert opened.search(photos / "0003.jpg") == index.search(photos / "0003.jpg")


def test_vectors_that_no_index_has_left_are_not_written_over(encoder, photos, tmp_path):
    (tmp_path / "vectors.npz").write_text("mine")
    with pytest.raises(InputError, match=r"vectors\.npz exists\. Pass --overwrite"):
        encoder.index(photos, tmp_path)
    assert (tmp_path / "vectors.npz").read_text() == "mine"


def test_an_unreadable_photo_stops_where_that_is_asked(encoder, photos, tmp_path):
    with pytest.raises(InputError, match=r"broken\.jpg cannot be read"):
        encoder.index(photos, tmp_path / "index", on_unreadable="error")


def test_a_data_set_by_name_is_indexed_too(encoder, tmp_path):
    index = encoder.index("groceries", tmp_path / "index")
    (match,) = index.search(index.picture(index.match(5, 1.0)), 1)
    assert match.number == 5
    assert not index.is_moved(match)


def test_photos_of_a_list_are_found_from_any_other_folder(encoder, tmp_path, monkeypatch):
    save_photos(tmp_path / "photos", 3)
    lines = ["path", *(f"photos/{number:04d}.jpg" for number in range(3))]
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    encoder.index("list.csv", "index")
    monkeypatch.chdir("/")
    opened = eqco.open_index(tmp_path / "index")
    (match,) = opened.search(tmp_path / "photos" / "0001.jpg", 1)
    assert match.name == str(tmp_path / "photos" / "0001.jpg")
    with Image.open(match.name) as picture:
        assert opened.picture(match).tobytes() == picture.convert("RGB").tobytes()
