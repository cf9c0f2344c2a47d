# The libraries: the installed one, else fetched with a pinned hash, else one line that says what to install.
# Our targets link ATTN::<name>, so that nothing else needs to know where a library came from.
include(FetchContent)

# attn_library(<name> <target> <package> <Debian package> <url> <sha256>)
function(attn_library name target package debian url sha256)
  find_package(${package} QUIET GLOBAL)
  if(NOT TARGET ${target})
    # Downloaded here rather than by FetchContent, whose failure is a page of text instead of a line.
    set(archive ${CMAKE_BINARY_DIR}/downloads/${name}-${sha256})
    if(NOT EXISTS ${archive})
      file(DOWNLOAD ${url} ${archive}.part STATUS status TIMEOUT 120)
      list(GET status 0 failed)
      if(NOT failed)
        file(SHA256 ${archive}.part got)
      endif()
      if(failed OR NOT got STREQUAL sha256)
        message(FATAL_ERROR "${package} is not installed and could not be fetched: run ./setup.sh, or "
                            "`apt-get install ${debian}`.")
      endif()
      file(RENAME ${archive}.part ${archive})
    endif()
    message(STATUS "${package}: not installed, using the fetched ${url}")
    FetchContent_Declare(${name} URL file://${archive} URL_HASH SHA256=${sha256} DOWNLOAD_EXTRACT_TIMESTAMP ON)
    FetchContent_MakeAvailable(${name})
  endif()
  add_library(ATTN::${name} INTERFACE IMPORTED GLOBAL)
  target_link_libraries(ATTN::${name} INTERFACE ${target})
endfunction()

attn_library(cli11 CLI11::CLI11 CLI11 libcli11-dev
  https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.1.tar.gz
  73b7ec52261ce8fe980a29df6b4ceb66243bb0b779451dbd3d014cfec9fdbb58)
attn_library(fmt fmt::fmt fmt libfmt-dev
  https://github.com/fmtlib/fmt/archive/refs/tags/11.0.2.tar.gz
  6cb1e6d37bdcb756dbbe59be438790db409cdb4868c66e888d5df9f13f7c027f)
attn_library(json nlohmann_json::nlohmann_json nlohmann_json nlohmann-json3-dev
  https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
if(BUILD_TESTING OR NOT DEFINED BUILD_TESTING)
  attn_library(catch2 Catch2::Catch2 Catch2 catch2
    https://github.com/catchorg/Catch2/archive/refs/tags/v3.4.0.tar.gz
    122928b814b75717316c71af69bd2b43387643ba076a6ec16e7882bfb2dfacbb)
endif()

# Boost.Context is optional: without it the executor's fibers use ucontext, whose switch is some ten times slower.
find_package(Boost QUIET COMPONENTS context)
if(TARGET Boost::context)
  add_library(ATTN::context INTERFACE IMPORTED GLOBAL)
  target_link_libraries(ATTN::context INTERFACE Boost::context)
else()
  message(STATUS "Boost.Context: not installed; the CPU executor uses ucontext and is slower "
                 "(apt-get install libboost-context-dev).")
endif()
