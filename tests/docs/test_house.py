"""The picture of the house in docs/design.md is that of the imports, and its table names every room."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = re.compile(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`")


def test_the_picture_shows_the_rooms_on_the_floors_that_their_imports_make() -> None:
    house = runpy.run_path(str(ROOT / "docs/house.py"))
    assert house["PICTURE"].read_text(encoding="utf-8") == house["picture"](), "run python docs/house.py"
    assert set(house["rooms"]()) == {room for floor in house["floors"]() for room in floor}
    assert house["floors"]()[-1] == ["core"]


def test_the_walks_lead_through_places_that_exist() -> None:
    walks = (ROOT / "docs/design.md").read_text(encoding="utf-8").partition("## Seven walks\n")[2].partition("\n## ")[0]
    places = PLACE.findall(walks)
    assert walks.count("\n**") == 7
    assert len(places) > 25
    assert not [place for place in places if not (ROOT / "src/togi" / place).exists()]
