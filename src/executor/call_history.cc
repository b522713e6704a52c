#include "executor/call_history.h"

#include <fmt/format.h>

#include <string>

#include "core/types.h"

namespace ropewalk::executor {
namespace {

std::string describe(const CallTag& tag) {
  const auto type = static_cast<DataType>(tag.type_and_op & 0x0f);
  if (tag.collective == kPointToPoint) {
    return fmt::format("send or receive of {} {}", tag.count, name(type));
  }
  const auto collective = static_cast<Collective>(tag.collective);
  std::string text = fmt::format("{} of {} {}", name(collective), tag.count, name(type));
  if (reduces(collective))
    text += fmt::format(" {}", name(static_cast<RedOp>(tag.type_and_op >> 4)));
  if (has_root(collective)) text += fmt::format(" root {}", tag.root);
  return text;
}

std::string differing_fields(const CallTag& a, const CallTag& b) {
  std::string fields;
  const auto add = [&](bool differs, const char* field) {
    if (!differs) return;
    if (!fields.empty()) fields += ", ";
    fields += field;
  };
  add(a.collective != b.collective, "operation");
  add(a.count != b.count, "count");
  add((a.type_and_op & 0x0f) != (b.type_and_op & 0x0f), "type");
  add((a.type_and_op >> 4) != (b.type_and_op >> 4), "operator");
  add(a.root != b.root, "root");
  add(a.call != b.call, "number of calls");
  return fields;
}

}  // namespace

std::string describe_difference(int rank, const CallTag& ours, const CallHistory& history, int peer,
                                const CallTag& theirs) {
  const CallTag mine = history.find(theirs.call).value_or(ours);
  return fmt::format("ranks were called differently ({}): rank {} call {}: {}; rank {} call {}: {}",
                     differing_fields(mine, theirs), rank, mine.call, describe(mine), peer,
                     theirs.call, describe(theirs));
}

}  // namespace ropewalk::executor
