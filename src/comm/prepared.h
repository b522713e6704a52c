// A collective ready to run: a checked schedule compiled for this rank, with its links.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "comm/collective_call.h"
#include "comm/executor.h"
#include "executor/host/short_walk.h"
#include "executor/program.h"
#include "executor/walker.h"
#include "link/links.h"
#include "schedule/checked.h"
#include "tune/choice.h"
#include "tune/cost_model.h"

namespace ropewalk::comm {

/// Elements between whose multiples calls on host memory are cut into channels and parts.
std::size_t granule_of(std::size_t element_bytes) noexcept;

/// Kept by a communicator for every schedule that it has run.
///
/// Threads: one at a time; at most one call at a time is armed.
class PreparedCollective {
 public:
  /// @param routed  where the schedule was made for the machine: whose links go its routes; or null
  /// @param lag_slots  chunks that a link holds, where links take so long that steps which receive
  ///                   should lag behind those which send (schedule/lags.h); 0: round by round
  PreparedCollective(std::shared_ptr<const schedule::Checked> checked, int rank,
                     const tune::RoutedSchedule* routed = nullptr, std::uint32_t lag_slots = 0);

  /// Asks for the links. @return true when all are connected; call again otherwise
  bool connect(link::Links& links) { return connected_ || connect_more(links); }

  [[nodiscard]] bool connected() const noexcept { return connected_; }

  /// Sets the strands to the start of a call. @pre connected()
  /// @param chunk_bytes  of its chunks; 0: as chosen
  void arm(const CollectiveCall& call, bool in_place, const executor::CallTag& tag,
           const tune::Choice& choice, int num_ranks, bool check_tags, std::size_t chunk_bytes = 0);

  /// The same call once more. @pre arm() was for the last call
  void arm_again(std::uint32_t number) noexcept {
    copy_tag(call_.tag, call_.tag, number);
    restart();
  }

  /// What this rank sends in a call of this shape: by peer, each once.
  [[nodiscard]] std::vector<trace::SentBytes> sent_bytes(const CollectiveCall& shape) const;

  [[nodiscard]] executor::Call& call() noexcept { return call_; }
  [[nodiscard]] std::vector<executor::Strand>& strands() noexcept { return strands_; }
  [[nodiscard]] const std::vector<executor::Strand>& strands() const noexcept { return strands_; }
  /// Of the call that was armed last.
  [[nodiscard]] executor::ShortWalk& short_walk() noexcept { return short_walk_; }
  [[nodiscard]] const schedule::Checked& checked() const noexcept { return *checked_; }
  /// Whether every chunk of a call can go by address.
  [[nodiscard]] bool all_by_address() const noexcept { return all_by_address_; }

 private:
  bool connect_more(link::Links& links);
  void restart() noexcept {
    short_walk_.restart(call_);
    for (executor::Strand& strand : strands_) {
      strand.turn = 0;
      strand.step = 0;
    }
  }
  void set_arithmetic(const CollectiveCall& call, int num_ranks);
  void cut(const CollectiveCall& call, const tune::Choice& choice, std::size_t chunk_bytes);
  void take_program(std::size_t channel);

  std::shared_ptr<const schedule::Checked> checked_;
  // Per channel; not resized once strands point into them. For calls of several rounds, and those
  // of one round: in these nothing lags, so that messages to the same rank follow each other. The
  // latter are empty where nothing lags at all.
  std::vector<executor::Program> programs_;
  std::vector<executor::Program> one_round_;
  std::vector<executor::Strand> strands_;  // the same order
  // Of each strand's links, in the order of Program::send_peers and receive_peers.
  struct Routes {
    std::vector<link::Route> sends;
    std::vector<link::Route> receives;
  };
  std::vector<Routes> routes_;
  executor::ShortWalk short_walk_;
  executor::Call call_;
  // What `call_` and the strands' lengths were last set for.
  struct Shape {
    std::size_t count = 0;
    std::uint64_t scalar = 0;
    std::size_t chunk_bytes = 0;  // 0: the choice's
    int choice = -1;              // Choice::index
    DataType type = DataType::kInt8;
    RedOp op = RedOp::kSum;
    friend bool operator==(const Shape&, const Shape&) = default;
  };
  Shape shape_;
  bool connected_ = false;
  bool all_by_address_ = false;
};

}  // namespace ropewalk::comm
