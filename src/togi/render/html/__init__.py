"""A study, an account of memory, or one of a CUDA memory snapshot, as one offline HTML file: no network, no library,
the same bytes for the same record.

Figures are placed by percentages in plain HTML and CSS, so that they follow the width of a phone and keep
readable text; the script only sorts, filters and shows hints. Without it everything is still there to read.
"""

from togi.render.html.account_page import account_html
from togi.render.html.snapshot_page import snapshot_html
from togi.render.html.study_page import study_html

__all__ = ["account_html", "snapshot_html", "study_html"]
