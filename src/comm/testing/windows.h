// What tests of windows in host and in GPU memory share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/testing/pattern.h"
#include "message/window_memory.h"

namespace ropewalk::comm::testing {

/// Different in each byte, rank and turn.
inline std::vector<std::byte> pattern(std::size_t bytes, int rank, int turn) {
  std::vector<std::byte> made(bytes);
  ropewalk::testing::fill_pattern(
      made.data(), bytes,
      static_cast<std::uint64_t>(rank) << 32U | static_cast<std::uint32_t>(turn));
  return made;
}

/// With what `body` is refused. An error that breaks a communicator is kInternal, "broke: ...".
template <typename Body>
std::pair<Errc, std::string> refusal_of(Body&& body) {
  try {
    body();
  } catch (const message::Refused& error) {
    return {error.code(), error.what()};
  } catch (const Error& error) {
    return {Errc::kInternal, std::string("broke: ") + error.what()};
  }
  return {Errc::kInternal, "no error"};
}

}  // namespace ropewalk::comm::testing
