#include "message/operation.h"

#include <string_view>

#include "message/window.h"

namespace ropewalk::message {

std::string describe(const OperationSpec& spec) {
  const std::uint32_t number = spec.window->number();
  switch (spec.kind) {
    case OperationKind::kPut:
      return fmt::format("put of {} bytes to rank {}, window {}", spec.bytes, spec.peer, number);
    case OperationKind::kGet:
      return fmt::format("get of {} bytes from rank {}, window {}", spec.bytes, spec.peer, number);
    case OperationKind::kSignal:
      return fmt::format("signal to rank {}, window {}, slot {}", spec.peer, number, spec.slot);
    case OperationKind::kWaitSignal:
      return fmt::format("wait for {} signal(s) of rank {}, window {}, slot {}", spec.count,
                         spec.peer, number, spec.slot);
    case OperationKind::kFlush:
      return fmt::format("flush to rank {}, window {}", spec.peer, number);
  }
  return "operation";
}

}  // namespace ropewalk::message
