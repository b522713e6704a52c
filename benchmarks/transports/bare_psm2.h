// libpsm2 called directly in a loop, over its shared-memory device, for comparison with the
// transport `psm2`.
#pragma once

#include <cstddef>
#include <memory>

#include "transports/bare.h"

namespace ropewalk {

/// One end of a pair of processes, joined by `socket`. psm2_mq_isend2 and psm2_mq_irecv2, each
/// tested by psm2_mq_test2 and psm2_poll until it has ended. A process initialises libpsm2 once, so
/// that it is loaded as the transport loads it; the endpoint is its own.
class BarePsm2 final : public Bare {
 public:
  /// @throws Error naming the call that failed
  BarePsm2(int socket, void* out, void* in);
  ~BarePsm2() override;
  BarePsm2(const BarePsm2&) = delete;
  BarePsm2& operator=(const BarePsm2&) = delete;
  void send_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) override;
  void receive_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) override;
  void ping_pong(std::size_t bytes, int times, bool first) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ropewalk
