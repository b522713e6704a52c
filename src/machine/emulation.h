// An emulated machine: the ranks are processes or threads of this host, and each physical link of
// the machine that EMULATE names is a token bucket that they share, slowed so that this host's
// memory and processors do not limit (transport/emulated). Schedules, links and data are real.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/settings.h"
#include "core/shared_memory.h"
#include "link/route.h"
#include "machine/emulated_machines.h"
#include "machine/machine.h"
#include "transport/emulated/paced_connection.h"

namespace ropewalk::machine {

/// Ranks of an emulated machine have no memory in common that the machine does not have: all their
/// links are network links, over the transport that joins processes of one host.
class Emulation {
 public:
  /// Collective over all ranks. @param emulated what EMULATE names
  /// @throws Error kInvalidUsage, on every rank, where ranks are not on one host or their settings
  ///         differ; kSystem without shared memory
  static std::unique_ptr<Emulation> join(bootstrap::Bootstrap& bootstrap, const Config& config,
                                         const EmulatedMachine& emulated, Deadline deadline);

  /// Links are this many times as slow as the machine's, and latencies as long.
  [[nodiscard]] double slowdown() const noexcept { return slowdown_; }
  [[nodiscard]] const Machine& machine() const noexcept { return *machine_; }

  /// For the links of this rank.
  [[nodiscard]] link::Pacer pacer();

  /// A call of this rank starts now: nothing that it sends was ready before.
  void begin() noexcept { beginning_.at = transport::emulated::monotonic_now(); }

 private:
  Emulation(std::shared_ptr<const Machine> machine, int rank, double slowdown, SharedMemory memory);
  [[nodiscard]] transport::emulated::Path path_to(int channel, int peer,
                                                  const link::Route& route) const;
  [[nodiscard]] transport::emulated::LinkClock* link(std::size_t index) const noexcept;
  [[nodiscard]] transport::emulated::RankClock* rank(int rank, int channel) const noexcept;

  std::shared_ptr<const Machine> machine_;
  int rank_;
  double slowdown_;
  SharedMemory memory_;  // a LinkClock for each link, RankClocks for each rank
  transport::emulated::Beginning beginning_;
};

/// JSON: machine, gpus (ids, by rank), slowdown.
std::string describe(const Emulation& emulation);

/// The slowdown that this host's processors keep up with where the setting gives none: all ranks
/// sending as fast as their links let them then move kBytesPerProcessor bytes a second for each of
/// `processors`. At least 1; two digits.
double slowdown_of(const topology::Topology& machine, int processors);

/// The GPUs that the setting EMULATE_GPUS lists, else the first `size`.
/// Of a longer list, the first `size`, as communicators that were split off need.
/// @throws Error kInvalidArgument for a malformed list, one shorter than `size`, and more ranks
/// than
///         the machine has GPUs
std::vector<int> emulated_gpus(const Config& config, const topology::Topology& machine, int size);

}  // namespace ropewalk::machine
