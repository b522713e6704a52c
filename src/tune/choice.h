// The choice for a call: a schedule, and how it is cut.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/block/links.h"
#include "plan/nic_assignment.h"
#include "schedule/checked.h"
#include "tune/machine_cost.h"
#include "tune/routed_schedule.h"

namespace ropewalk::tune {

/// How the chunks of calls on host memory travel: staged in slots, or by the address of their data.
struct CopyForm {
  std::size_t chunk_bytes = 0;          ///< largest chunk that is staged; at most a slot
  std::size_t address_bytes = 0;        ///< smallest chunk that goes by address
  std::size_t address_chunk_bytes = 0;  ///< chunk where every chunk of a call goes by address
};

struct Choice : CopyForm {
  int index = 0;  ///< counts the distinct choices of this tuner
  std::string algorithm;
  plan::NicRule nic_rule = plan::NicRule::kBalanced;  ///< Candidate's
  executor::Protocol protocol = executor::Protocol::kSimple;
  int channels = 1;
  int threads = 0;              ///< of a block on a GPU
  std::size_t share_bytes = 0;  ///< smallest chunk that its sender may help to copy
  /// Host memory, for executor::Strand: of ranks that also receive, and of those that only send.
  std::size_t common_slot_bytes = 0;
  std::size_t sender_common_slot_bytes = 0;
  /// Host memory, where calls can go staged and by address: the form that was not chosen.
  std::optional<CopyForm> other;
  double other_seconds = 0;  ///< predicted, in that form
  /// Host memory, what choose() returns: forms that such calls may have instead, with the same
  /// result to the bit. What calls take decides (comm/agreed_forms.h), since data in caches and
  /// from memory differ, and the price is a model. The chosen algorithm in its other form;
  /// where data is only moved the soonest other one by address, if it is not far from that, then
  /// others in their sooner form. They have no others.
  std::vector<std::shared_ptr<const Choice>> others;
  double predicted_seconds = 0;
  /// What runs; null in what Tuner::priced() returns.
  std::shared_ptr<const schedule::Checked> schedule;
  /// Where the schedule is not one of the registry's (schedule/compile.h) but was made for this
  /// machine or given by the user; else null.
  std::shared_ptr<const RoutedSchedule> routed;
  /// On a machine (else 0 and none): GB/s in the limit of long messages as nccl-tests counts them,
  /// and the links that limit it (indices into the machine's links).
  double algbw_gbps = 0;
  std::vector<LinkShare> limiting_links;
};

/// The choice with its other form. @pre there is one
inline Choice with_other_form(const Choice& choice) {
  Choice other = choice;
  // Not that of any choice (from 0 on), nor of none (-1).
  other.index = -2 - choice.index;
  std::swap(static_cast<CopyForm&>(other), *other.other);
  std::swap(other.predicted_seconds, other.other_seconds);
  other.others.clear();
  return other;
}

}  // namespace ropewalk::tune
