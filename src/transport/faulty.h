// Faults on purpose: wraps a transport and makes its requests late, out of order, failing or lost.
//
// A specification (setting FAULTY) is a comma list: delay=2ms (a request is reported finished up
// to so much later), reorder=0.1 (that share of requests is reported finished only after a later
// one of the same connection, or a millisecond later when there is none), fail=0.01 (that share of
// requests throws kPeerLost from test(), as do all later ones of the connection), drop=0.001 (that
// share of requests never finishes: the caller's deadline must end it), seed=1. What happens to the
// n-th request of the m-th connection depends on the seed, m, n and the direction alone.
//
// A dropped or failed send may still have been received: as in life, the end that fails and the
// end that succeeds are not always the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "transport/transport.h"

namespace ropewalk::transport {

struct Faults {
  std::chrono::nanoseconds delay{0};
  double reorder = 0;
  double fail = 0;
  double drop = 0;
  std::uint64_t seed = 1;
};

/// @throws Error kInvalidArgument for an unknown fault, a malformed value, a share outside 0 to 1
Faults parse_faults(std::string_view text);

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> inner, const Faults& faults);

}  // namespace ropewalk::transport
