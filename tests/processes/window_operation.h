// Operations on windows, for tests whose ranks are processes.
#pragma once

#include "message/messenger.h"

namespace ropewalk::testing {

/// Of `count` 1; the rest is to be set.
inline message::OperationSpec operation(message::OperationKind kind, message::Window& window,
                                        int peer) {
  message::OperationSpec spec;
  spec.kind = kind;
  spec.window = &window;
  spec.peer = peer;
  spec.count = 1;
  return spec;
}

}  // namespace ropewalk::testing
