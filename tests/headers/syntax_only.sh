#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/headers/syntax_only.sh COMPILER ARGUMENT...: the call without making code; the object file is empty.
set -eu
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then object=$argument; fi
  previous=$argument
done
"$@" -fsyntax-only
: >"$object"
