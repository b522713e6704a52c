// What NCCL tells of an event when it starts, in one form for all versions of the interface.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ropewalk::profiler {

/// A collective or a message.
struct Operation {
  bool message = false;
  std::string name;  ///< "all_reduce", "send", ...; NCCL's own in lower case where it is unknown
  std::uint64_t count = 0;
  std::string type;       ///< "float32"
  int root = -1;          ///< of rooted collectives
  int peer = -1;          ///< of messages
  std::string algorithm;  ///< "ring"; empty for messages
  std::string protocol;   ///< "simple", "ll", "ll128"; empty for messages
  int rank = 0;
  std::optional<std::uint64_t> communicator;  ///< up to version 3
};

struct Event {
  std::uint64_t kind = 0;  ///< one of abi::EventKind, or another bit
  void* parent = nullptr;
  std::optional<Operation> operation;      ///< of collectives and messages
  std::optional<std::uint64_t> gpu_start;  ///< of kernel channels from version 4: the GPU's ns
};

/// Reads a descriptor of `version` (abi.h). It is NCCL's, as long as the call lasts.
Event read_descriptor(int version, const void* descriptor);

/// What comes with abi::kKernelChannelStop in `version`: the GPU's clock in ns, or nothing.
std::optional<std::uint64_t> read_gpu_stop(int version, int state, const void* arguments);

}  // namespace ropewalk::profiler
