// One rank in a measurement: its buffers, its calls, and the data that it verifies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "diagnose/measure.h"
#include "diagnose/measure_site.h"

namespace ropewalk::diagnose {

/// Threads: one at a time. Lifetime: within the communicator's, and that of the spec.
class MeasuredRank {
 public:
  /// Takes the buffers. @throws Error kInvalidUsage for a rank without the GPU that is wanted;
  /// kSystem, kCuda
  MeasuredRank(comm::Communicator& comm, const MeasureSpec& spec);

  [[nodiscard]] comm::Communicator& comm() noexcept { return comm_; }
  [[nodiscard]] MeasureSite& site() noexcept { return *site_; }

  /// The calls that take turns: one, or one for each root.
  [[nodiscard]] std::size_t turns() const noexcept { return turns_.size(); }
  [[nodiscard]] const comm::CollectiveCall& call(std::size_t turn) const {
    return turns_[turn].call;
  }

  /// Writes the input of a call.
  void fill(std::size_t turn);
  /// Writes what no result is where the result of a call will be.
  void spoil(std::size_t turn);
  /// Elements of a call's result that differ from the expected value.
  [[nodiscard]] std::uint64_t count_wrong(std::size_t turn);

 private:
  struct Turn {
    comm::CollectiveCall call;
    std::byte* input = nullptr;  // the call's, which only reads it
    std::byte* output = nullptr;
  };
  [[nodiscard]] Turn turn_of(int root, std::byte* input, std::byte* output) const;

  comm::Communicator& comm_;
  const MeasureSpec& spec_;
  std::unique_ptr<MeasureSite> site_;
  std::vector<Turn> turns_;
};

}  // namespace ropewalk::diagnose
