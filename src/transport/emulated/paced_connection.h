// A connection whose messages arrive when the physical links of an emulated machine would have
// brought them: it holds each one back until then, and hands it to a connection that is faster.
#pragma once

#include <functional>
#include <memory>

#include "transport/emulated/link_clock.h"
#include "transport/transport.h"

namespace ropewalk::transport::emulated {

/// When this rank began what it does now: no message was ready before.
///
/// Threads: one at a time, the one that drives the rank's connections.
struct Beginning {
  Instant at = 0;
};

/// @param path      its clocks outlive the connection
/// @param beginning outlives the connection
/// @param now       the clock, for tests; CLOCK_MONOTONIC by default
std::unique_ptr<SendConnection> pace(std::unique_ptr<SendConnection> inner, Path path,
                                     const Beginning& beginning, std::function<Instant()> now = {});

/// Nanoseconds of CLOCK_MONOTONIC.
Instant monotonic_now() noexcept;

}  // namespace ropewalk::transport::emulated
