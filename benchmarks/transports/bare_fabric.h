// libfabric called directly, as in fi_rdm_tagged_pingpong and fi_rdm_tagged_bw of fabtests, for
// comparison with the transport `ofi`.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "transports/bare.h"

namespace ropewalk {

/// One end of a pair of processes, joined by `socket`. Tagged messages; short ones are injected.
class BareFabric final : public Bare {
 public:
  /// @throws Error naming the call that failed
  BareFabric(const std::string& provider, int socket, void* out, void* in, std::size_t bytes);
  ~BareFabric() override;
  BareFabric(const BareFabric&) = delete;
  BareFabric& operator=(const BareFabric&) = delete;
  void send_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) override;
  void receive_many(std::size_t bytes, std::size_t messages, std::size_t in_flight) override;
  void ping_pong(std::size_t bytes, int times, bool first) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ropewalk
