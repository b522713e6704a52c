#include "executor/call_history.h"

#include <fmt/format.h>

#include <string>

#include "core/types.h"

namespace ropewalk::executor {
namespace {

unsigned type_of(const CallTag& tag) { return tag.type_and_op & ((1U << kTagTypeBits) - 1); }
unsigned operator_of(const CallTag& tag) { return tag.type_and_op >> kTagTypeBits; }

std::string_view type_name(const CallTag& tag) {
  const auto type = static_cast<int>(type_of(tag));
  if (type < kNumDataTypes) return name(static_cast<DataType>(type));
  const bool carried = type >= kFirstCarriedType && type < kEndOfCarriedTypes;
  return carried ? name(static_cast<CarriedType>(type)) : "unknown elements";
}

std::string describe(const CallTag& tag) {
  if (tag.collective == kBarrier) return "barrier";
  if (tag.collective == kPointToPoint) {
    return fmt::format("send or receive of {} {}", tag.count, type_name(tag));
  }
  const auto collective = static_cast<Collective>(tag.collective & ~unsigned{kByCopyEngines});
  std::string text = fmt::format("{} of {} {}", name(collective), tag.count, type_name(tag));
  if (reduces(collective)) text += fmt::format(" {}", name(static_cast<RedOp>(operator_of(tag))));
  if (has_root(collective)) text += fmt::format(" root {}", tag.root);
  if ((tag.collective & kByCopyEngines) != 0) text += " by copy engines";
  return text;
}

std::string differing_fields(const CallTag& a, const CallTag& b) {
  std::string fields;
  const auto add = [&](bool differs, const char* field) {
    if (!differs) return;
    if (!fields.empty()) fields += ", ";
    fields += field;
  };
  const bool only_carriers_differ = (a.collective ^ b.collective) == kByCopyEngines;
  add(a.collective != b.collective && !only_carriers_differ, "operation");
  add(only_carriers_differ, "by copy engines or by kernels");
  if (a.collective != kBarrier && b.collective != kBarrier) {
    add(a.count != b.count, "count");
    add(type_of(a) != type_of(b), "type");
    add(operator_of(a) != operator_of(b), "operator");
    add(a.root != b.root, "root");
  }
  add(a.call != b.call, "number of calls");
  return fields;
}

}  // namespace

std::string describe_difference(int rank, const CallTag& ours, const CallHistory& history, int peer,
                                const CallTag& theirs) {
  CallTag mine = history.find(theirs.call).value_or(ours);
  std::string_view hint;
  if (mine == theirs) {
    // Each call had its like, and yet they met in another order.
    mine = ours;
    hint = "; was a communicator used by two threads at once?";
  }
  return fmt::format(
      "ranks issued different calls ({}): rank {} call {}: {}; rank {} call {}: {}{}",
      differing_fields(mine, theirs), rank, mine.call, describe(mine), peer, theirs.call,
      describe(theirs), hint);
}

}  // namespace ropewalk::executor
