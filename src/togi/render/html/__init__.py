"""Studies, proofs and memory as offline HTML: no network, no library, the same bytes for the same record.

Figures are placed by percentages in plain HTML and CSS, so that they follow the width of a phone and keep
readable text; the script only sorts, filters and shows hints. Without it everything is still there to read.
"""

from togi.render.html.findings_fragment import check_fragment
from togi.render.html.memory_pages import account_fragment, account_html, fit_fragment, snapshot_html
from togi.render.html.price_list_page import price_list_html
from togi.render.html.proofs_page import proofs_html
from togi.render.html.study_page import comparison_fragment, study_fragment, study_html

__all__ = [
    "account_fragment",
    "account_html",
    "check_fragment",
    "comparison_fragment",
    "fit_fragment",
    "price_list_html",
    "proofs_html",
    "snapshot_html",
    "study_fragment",
    "study_html",
]
