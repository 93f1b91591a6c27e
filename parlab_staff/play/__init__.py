"""The playground: pages of the book on which readers run ranks in their browser.

    runtime/   JavaScript: ranks are workers, and match their messages in shared memory
    python/    modules that a rank imports there: mpi4py's interface, and seams for the checks
    page/      the pages: editor, picture, steps, table, service worker
    vendor/    Python, NumPy, and CodeMirror, unchanged from their registries
    examples/  programs of the other pages, by chapter
    build.py   writes all of this into a built book

A send waits for its receiver, as in the course's checks. Times come from the browser's clock. A
small message takes about 0.1 ms, mostly in Python, so α is much larger than between processes. The
check that measures time works, because its delays are much longer.
"""
