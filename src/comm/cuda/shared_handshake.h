// The handshakes around copies as memory operations of streams, of collectives
// (handshake/stream_handshake.h) and of messages (handshake/copied_messages.h), with the memory for
// their words.
#pragma once

#include <memory>

#include "bootstrap/bootstrap.h"
#include "comm/runtime.h"
#include "core/settings.h"
#include "executor/block/launch.h"
#include "handshake/copied_messages.h"
#include "handshake/stream_handshake.h"
#include "link/cuda/device_peers.h"

namespace ropewalk::comm {

/// Its device is current when it is made and destroyed.
struct SharedHandshake {
  std::unique_ptr<link::PinnedMemory> memory;
  std::unique_ptr<handshake::StreamHandshake> handshake;
  std::unique_ptr<link::PinnedMemory> message_memory;
  std::unique_ptr<handshake::CopiedMessages> messages;  ///< null where there are too many ranks
};

/// Collective: null, on all ranks, where kernels have to do it: the setting COPY_HANDSHAKES of one
/// rank says so, its driver has no such operations, it notes times on the GPU's clock, or ranks
/// share a GPU. A log line tells which and why.
/// @pre all ranks reach each other's memory, on one host
/// @param timed this rank notes times
/// @throws Error kCuda, kSystem
std::unique_ptr<SharedHandshake> make_shared_handshake(bootstrap::Bootstrap& bootstrap,
                                                       const Config& config, Runtime& runtime,
                                                       link::DevicePeers& peers,
                                                       executor::Control& control, int device,
                                                       bool timed);

}  // namespace ropewalk::comm
