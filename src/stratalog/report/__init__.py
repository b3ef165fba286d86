"""The report as one HTML page: no file beside it, no network, no library.

`page.render` turns `ReportFacts` into the text of the page; `charts` draws, `tables` tabulates.
"""
