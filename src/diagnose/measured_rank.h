// One rank in a measurement: its buffers, its calls, and the data that it verifies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "diagnose/measure.h"
#include "diagnose/measure_site.h"
#include "schedule/pattern.h"

namespace ropewalk::diagnose {

/// Threads: one at a time. Lifetime: within the communicator's, and that of the spec.
class MeasuredRank {
 public:
  /// Takes the buffers.
  /// @throws Error kInvalidUsage for a rank without the GPU that is wanted; kSystem, kCuda
  MeasuredRank(comm::Communicator& comm, const MeasureSpec& spec);

  [[nodiscard]] comm::Communicator& comm() noexcept { return comm_; }
  [[nodiscard]] MeasureSite& site() noexcept { return *site_; }

  /// The calls that take turns: one, or one for each root.
  [[nodiscard]] std::size_t turns() const noexcept { return turns_.size(); }
  /// As it is until the next advance().
  [[nodiscard]] const comm::CollectiveCall& call(std::size_t turn) {
    Turn& wanted = turns_[turn];
    wanted.call.input = wanted.input + shift_;
    wanted.call.output = wanted.output + shift_;
    return wanted.call;
  }
  /// Moves all calls to the memory after what they have now, or to the first (MeasureSpec::region).
  void advance() noexcept { shift_ = shift_ == last_shift_ ? 0 : shift_ + stride_; }

  /// Writes the input of the first turn's call, wherever it may move.
  void fill_all();
  /// Writes the input of a call where it is now.
  void fill(std::size_t turn);
  /// Poisons the output buffer.
  void spoil(std::size_t turn);
  /// Elements of a call's result that differ from the expected value.
  [[nodiscard]] std::uint64_t count_wrong(std::size_t turn);

 private:
  struct Turn {
    comm::CollectiveCall call;
    std::byte* input = nullptr;  // the call's, before it has moved
    std::byte* output = nullptr;
  };
  /// Bytes that the input, and the output but for that of one rank, repeat; 0: they do not.
  [[nodiscard]] std::size_t period() const noexcept { return period_; }
  [[nodiscard]] schedule::TestPattern pattern(int root) const;
  [[nodiscard]] Turn turn_of(int root, std::byte* input, std::byte* output) const;

  comm::Communicator& comm_;
  const MeasureSpec& spec_;
  std::unique_ptr<MeasureSite> site_;
  std::size_t period_ = 0;
  std::byte* inputs_ = nullptr;  // one block of stride_ bytes per call in rotation
  std::size_t stride_ = 0;
  std::size_t shift_ = 0;
  std::size_t last_shift_ = 0;
  std::vector<Turn> turns_;
};

}  // namespace ropewalk::diagnose
