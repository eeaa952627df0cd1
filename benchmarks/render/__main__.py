# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.render [DOCUMENT RESULTS]`: all documents, or one from one file."""

from __future__ import annotations

from benchmarks.render.documents import main

if __name__ == "__main__":
    main()
