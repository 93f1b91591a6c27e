#!/bin/sh
# Makes codemirror.js from entry.js, with the versions in package-lock.json. Needs npm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
cp "$here/entry.js" "$here/package.json" "$here/package-lock.json" "$scratch"
cd "$scratch"
npm ci --silent --no-audit --no-fund
npx esbuild entry.js --bundle --minify --format=esm --target=es2022 --charset=utf8 \
    --legal-comments=none \
    --banner:js="/* CodeMirror 6, MIT License. See LICENSE and package-lock.json. */" \
    --outfile="$here/codemirror.js" --log-level=error
