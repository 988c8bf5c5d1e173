# ingot_layer(NAME SOURCES ... HEADERS ... USES layers... PRIVATE libraries... PUBLIC libraries...)
# One static library per folder, with our warnings, no contraction of a*b+c, and self-contained headers verified.
set(INGOT_WARNINGS -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast
  # Aggregates with designated initialisers rely on the defaults of the members that are not named.
  -Wno-missing-field-initializers)
# These warnings depend on inlining, and GCC gives false ones: 12 for std::string (its bugs 105651, 105329), 13 for a
# variant that is moved. They are shown, but stay warnings where others are errors.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  if(CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    list(APPEND INGOT_WARNINGS -Wno-restrict)
  endif()
  foreach(warning array-bounds stringop-overflow stringop-overread maybe-uninitialized)
    list(APPEND INGOT_WARNINGS -Wno-error=${warning})
  endforeach()
endif()

# ccache needs this to find a file again that was compiled with precompiled headers (see scripts/build.sh).
set(INGOT_CACHEABLE_PCH "$<IF:$<CXX_COMPILER_ID:GNU>,-fpch-preprocess,SHELL:-Xclang -fno-pch-timestamp>")

# With 100 MB of precompiled headers in memory, GCC's collector walks over all of them again and again, and frees little.
set(INGOT_RARE_COLLECTION "$<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>")

function(ingot_compile_options target)
  target_compile_options(${target} PRIVATE ${INGOT_WARNINGS} -ffp-contract=off ${INGOT_CACHEABLE_PCH}
    ${INGOT_RARE_COLLECTION})
  if(INGOT_COVERAGE)
    # Counts of lines that several threads ran at a time stay true only if they are atomic.
    target_compile_options(${target} PRIVATE --coverage -fprofile-update=atomic $<$<CONFIG:Release>:-O1>)
    target_link_options(${target} PUBLIC --coverage)
  endif()
endfunction()

# ingot_unity(TARGET): ten files with the same options are compiled at a time, as most of the time goes into templates that
# all of them use: half the time or less. Not kernels, of which each file is compiled for many processors; and not in debug
# builds, in which each file must include what it uses. A name that a file has for itself is no other's (own_names.py).
function(ingot_unity target)
  if(CMAKE_BUILD_TYPE STREQUAL "Debug")
    return()
  endif()
  # GCC takes every file but the first for a header, whose classes may not hold a type of an anonymous namespace.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "_simd\\.cc$")
  set(n_plain 0)
  set(n_quick 0)
  foreach(source IN LISTS sources)
    get_property(options SOURCE ${source} PROPERTY COMPILE_OPTIONS)
    set(kind plain)
    if(options)
      # CMake leaves files with options out: the group has them.
      set(kind quick)
      set_property(SOURCE ${source} PROPERTY COMPILE_OPTIONS)
    endif()
    math(EXPR group "${n_${kind}} / 10")
    math(EXPR n_${kind} "${n_${kind}} + 1")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${kind}_${group})
    set_property(SOURCE ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${target}.dir/Unity/unity_${kind}_${group}_cxx.cxx
      PROPERTY COMPILE_OPTIONS "${options}")
  endforeach()
endfunction()

# For words, rules and plans, which have no loop over weights: -O1 compiles in four fifths of the time. GCC 13 and later
# read no headers that were precompiled at -O3 then, but do at -O2.
set(INGOT_QUICK -O1)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(INGOT_QUICK -O2)
endif()

# ingot_quick_build(LAYER [FOLDER...]): the files of these folders of the layer, or all of it, have no loop over weights.
function(ingot_quick_build layer)
  get_target_property(sources ingot_${layer} SOURCES)
  list(JOIN ARGN "/|" folders)
  set(quick $<$<CONFIG:Release>:${INGOT_QUICK}>)
  if(NOT folders)
    target_compile_options(ingot_${layer} PRIVATE ${quick})
    return()
  endif()
  list(FILTER sources INCLUDE REGEX "(^|/${layer}/)(${folders}/)")
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS ${quick})
endfunction()

# Headers that most files include, parsed once for all layers. A file still includes every header that it uses.
add_library(ingot_headers OBJECT ${CMAKE_CURRENT_LIST_DIR}/ingot_headers.cc)
ingot_compile_options(ingot_headers)
target_link_libraries(ingot_headers PRIVATE fmt::fmt)
target_include_directories(ingot_headers PRIVATE ${PROJECT_SOURCE_DIR})
target_precompile_headers(ingot_headers PRIVATE
  <algorithm> <array> <bit> <charconv> <cmath> <cstddef> <cstdint> <cstring> <filesystem> <functional> <limits> <map>
  <memory> <optional> <set> <span> <string> <string_view> <tuple> <unordered_map> <utility> <vector>
  <fmt/format.h> <fmt/ranges.h> <formats/json/nlohmann.h>)

function(ingot_layer name)
  cmake_parse_arguments(LAYER "" "" "SOURCES;HEADERS;USES;PUBLIC;PRIVATE" ${ARGN})
  add_library(ingot_${name} STATIC ${LAYER_SOURCES})
  add_library(ingot::${name} ALIAS ingot_${name})
  ingot_compile_options(ingot_${name})
  target_precompile_headers(ingot_${name} REUSE_FROM ingot_headers)
  target_sources(ingot_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${LAYER_HEADERS})
  set_target_properties(ingot_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  foreach(layer IN LISTS LAYER_USES)
    target_link_libraries(ingot_${name} PUBLIC ingot::${layer})
  endforeach()
  target_link_libraries(ingot_${name} PUBLIC ${LAYER_PUBLIC} PRIVATE ${LAYER_PRIVATE})
endfunction()
