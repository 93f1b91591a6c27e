// A browser lets no page of a folder on disk read another: search there without excerpts.
"use strict";

if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
