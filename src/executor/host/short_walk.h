// The walk of short calls (executor/walker.h) as a list made in advance: which links to look at,
// what to copy or add, and where to. All that depends on sizes alone is found out once, while a
// program repeats calls of one shape; the walker finds it out in each step of each call, which took
// a third of the time of a broadcast of 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "executor/host/host_team.h"
#include "executor/walker.h"

namespace ropewalk::executor {

/// For calls of one strand that move chunks of up to kMostBytes, in one round, over links in
/// memory. Threads: one at a time.
class ShortWalk {
 public:
  /// Longer ones have more to consider: outputs that no cache holds, copies that two ranks share.
  static constexpr std::size_t kMostBytes = 8192;

  /// Makes the list for calls like this one, whatever their buffers and number.
  /// @param strand  set for it, with its links; outlives this
  void prepare(const Strand& strand, const Call& call);

  /// Whether there is a list: prepare() found such a call.
  [[nodiscard]] bool usable() const noexcept { return !steps_.empty(); }

  /// To the start of a call.
  void restart(const Call& call) noexcept {
    at_ = 0;
    if (usable()) ask_for_lines(call);
  }

  /// As executor::walk(), which may go on with the strand after this.
  /// @pre usable(), and restart() at the start of the call
  bool walk(HostTeam& team, Strand& strand, const Call& call) {
    for (; at_ < steps_.size(); ++at_) {
      const Step& step = steps_[at_];
      if (!ready(team, step)) {
        strand.step = step.number;
        return false;
      }
      run(team, strand, call, step);
    }
    strand.step = 0;
    strand.turn = strand.rounds + strand.last_lag;
    return true;
  }

 private:
  static constexpr std::uint32_t kMostOperands = 8;
  static constexpr std::uint32_t kMostSends = 8;
  static constexpr std::size_t kOneStore = 16;

  struct Operand {
    ReceiveEnd* link = nullptr;  // null: this rank's own memory
    bool in_output = false;
    std::size_t offset = 0;
  };
  struct Step {
    std::uint32_t first_operand = 0;
    std::uint32_t num_operands = 0;
    std::uint32_t first_send = 0;
    std::uint32_t num_sends = 0;
    std::size_t bytes = 0;
    std::size_t output_offset = 0;
    bool writes_output = false;
    bool shares_slot = false;  // the links that it sends over have one slot
    std::uint32_t divisor = 1;
    std::size_t number = 0;  // in the strand's program
    Slice slice;
  };

  // The first lines of this rank's buffers: where no cache holds them, they come while the call
  // waits for others, and stores to them do not hold back the calls after this one.
  void ask_for_lines(const Call& call) const noexcept {
    for (const Operand& operand : operands_) {
      if (operand.link != nullptr) continue;
      __builtin_prefetch((operand.in_output ? call.output : call.input) + operand.offset);
    }
    for (const Step& step : steps_) {
      if (!step.writes_output) continue;
      HostTeam::prefetch_for_writing(call.output + step.output_offset);
    }
  }
  [[nodiscard]] bool ready(const HostTeam& team, const Step& step) const noexcept {
    const Operand* operand = operands_.data() + step.first_operand;
    for (std::uint32_t k = 0; k < step.num_operands; ++k, ++operand) {
      if (operand->link != nullptr && !team.wait_arrival(*operand->link, step.bytes)) return false;
    }
    SendEnd* const* send = sends_.data() + step.first_send;
    for (std::uint32_t k = 0; k < step.num_sends; ++k, ++send) {
      if (!team.wait_room(**send, step.bytes)) return false;
    }
    return true;
  }
  void run(HostTeam& team, Strand& strand, const Call& call, const Step& step) const {
    const Operand& first = operands_[step.first_operand];
    if (step.num_operands != 1 || step.divisor > 1) {
      run_combining(team, strand, call, step);
      return;
    }
    const std::byte* source = nullptr;
    if (first.link == nullptr) {
      source = (first.in_output ? call.output : call.input) + first.offset;
    } else {
      source = team.arrived(*first.link, call, step.bytes).data;
      if (is_given(*first.link)) {
        run_step(team, strand, call, strand.step_record(step.number), step.slice);
        return;
      }
    }
    SendEnd* const* const sends = sends_.data() + step.first_send;
    if (step.shares_slot) [[unlikely]] {
      send_shared(team, call, step, source);
    } else {
      for (std::uint32_t k = 0; k < step.num_sends; ++k) {
        std::byte* const to = team.describe(*sends[k], call, step.bytes, nullptr).data;
        copy(to, source, step.bytes, kInlineBytes);
        team.publish(*sends[k]);
      }
    }
    if (step.writes_output) {
      std::byte* const to = call.output + step.output_offset;
      // In few stores, as in run_combining().
      if (to != source) copy(to, source, step.bytes, kOneStore);
    }
    if (first.link != nullptr) team.release(*first.link, {});
  }
  void run_combining(HostTeam& team, Strand& strand, const Call& call, const Step& step) const;
  // All links of the step have the slot of the first one, which describe_shared() returns.
  std::byte* describe_shared(HostTeam& team, const Call& call, const Step& step) const;
  void send_shared(HostTeam& team, const Call& call, const Step& step,
                   const std::byte* source) const;

  // @param by_words  what is no longer is copied word by word
  static void copy(std::byte* to, const std::byte* from, std::size_t bytes,
                   std::size_t by_words) noexcept {
    if (bytes <= by_words) {
      HostTeam::copy_short(to, from, bytes);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  // Whether the next chunk, which is there, is in the memory of its writer, whose settings differ.
  static bool is_given(const ReceiveEnd& link) noexcept {
    return link.header(link.received + 1)->kind == SlotKind::kAddress;
  }

  std::vector<Step> steps_;
  std::vector<Operand> operands_;
  std::vector<SendEnd*> sends_;
  std::size_t at_ = 0;
};

}  // namespace ropewalk::executor
