# Writes a header with the commit of the tree: at every build, since a commit changes no file that the build looks at.
# Usage: cmake -DROOT=<source dir> -DOUT=<header> -P commit.cmake
cmake_minimum_required(VERSION 3.25)

set(commit "unknown")
# Not the commit of another repository that a plain copy of the tree lies in.
execute_process(COMMAND git -C ${ROOT} rev-parse --show-cdup --short=12 HEAD
  OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failure)
if(NOT failure AND said MATCHES "^\n([0-9a-f]+)\n$")
  set(commit ${CMAKE_MATCH_1})
  execute_process(COMMAND git -C ${ROOT} diff --quiet HEAD RESULT_VARIABLE is_changed ERROR_QUIET)
  if(is_changed)
    string(APPEND commit " (changed)")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#pragma once

namespace ingot::cli {
/// The commit that the program was built of; `(changed)` where files were not as they are there.
inline constexpr const char* kCommit = \"${commit}\";
}  // namespace ingot::cli
")
