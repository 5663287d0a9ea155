"""What an index tells of the objects that are followed."""

from __future__ import annotations

from typing import Any

from cacheprep.controller.index import Index
from cacheprep.objects import RESOURCES
from extproc.pool.discovery.kubernetes import Listing

Told = list[tuple[str | None, str | None]]


def item(uid: str, value: str) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "value": value}


class Followed:
    """An index, and one who follows objects for it as `follow` does."""

    def __init__(self) -> None:
        self.told: Told = []
        listing = Listing(RESOURCES["Pod"], "", lambda item: str(item["value"]))
        self.index: Index[str] = Index(listing, lambda old, new: self.told.append((old, new)))
        self.objects: dict[str, str] = {}

    def list(self, **values: str) -> None:
        """All is read anew."""
        self.objects = {uid: self.index.listing.read(item(uid, value)) for uid, value in values.items()}
        self.index.take(self.objects)

    def change(self, uid: str, value: str) -> None:
        self.objects[uid] = self.index.listing.read(item(uid, value))
        self.index.take(self.objects)

    def delete(self, uid: str) -> None:
        del self.objects[uid]
        self.index.take(self.objects)


def test_nothing_is_known_before_the_first_list_and_an_empty_one_is_told_too() -> None:
    followed = Followed()
    assert not followed.index.synced
    followed.list()
    assert followed.index.synced
    assert followed.told == [(None, None)]


def test_each_difference_is_told_once() -> None:
    followed = Followed()
    followed.list(a="1", b="2")
    followed.told.clear()
    followed.change("a", "3")
    followed.change("c", "4")
    followed.delete("b")
    assert followed.told == [("1", "3"), (None, "4"), ("2", None)]
    assert sorted(followed.index.values) == ["3", "4"]


def test_an_object_of_which_nothing_that_matters_changed_is_not_told() -> None:
    followed = Followed()
    followed.list(a="1")
    before = followed.index.values
    followed.told.clear()
    followed.change("a", "1")
    assert followed.told == []
    assert followed.index.values is before


def test_what_vanished_in_a_gap_is_told_when_all_is_read_anew() -> None:
    followed = Followed()
    followed.list(a="1", b="2")
    followed.told.clear()
    followed.list(b="2", c="3")
    assert set(followed.told) == {("1", None), (None, "3")}
    assert sorted(followed.index.values) == ["2", "3"]


def test_an_object_that_can_no_longer_be_read_is_gone() -> None:
    followed = Followed()
    followed.list(a="1")
    followed.told.clear()
    # `follow` leaves out what `read` refuses.
    followed.objects.pop("a")
    followed.index.take(followed.objects)
    assert followed.told == [("1", None)]
