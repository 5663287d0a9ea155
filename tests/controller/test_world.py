"""What the controller learns from objects that come and go."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cacheprep.controller.world import World

SAMPLES = Path(__file__).parents[2] / "manifests" / "operator" / "samples"


@pytest.mark.parametrize("kind", ["data", "image"])
def test_a_cache_that_has_gone_is_noticed_so_that_its_labels_go_whoever_deleted_it(kind: str) -> None:
    heard = []
    world = World(lambda _: None, lambda: heard.append(1), lambda: 0.0)
    index, sample = {
        "data": (world.data_caches, "model-data-cache-config.yaml"),
        "image": (world.image_caches, "model-image-cache.yaml"),
    }[kind]
    item = yaml.safe_load((SAMPLES / sample).read_text())
    item["metadata"]["uid"] = "u"
    index.take({"u": index.listing.read(item)})
    assert not world.lost_caches
    heard.clear()
    index.take({})
    assert world.lost_caches
    assert heard, "nobody looks"
