// What the walker hands to the primitives of a team: the call, and the operands of one step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "core/types.h"
#include "executor/link_end.h"

namespace ropewalk::executor {

/// The arguments of one call; the same for all its strands.
struct Call {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  ///< elements of a unit (schedule/layout.h)
  DataType type = DataType::kFloat32;
  std::size_t element_bytes = 4;
  RedOp op = RedOp::kSum;
  bool scaled = false;        ///< multiply this rank's input by `scalar`
  std::uint64_t scalar = 0;   ///< one element, in the low bytes
  std::uint32_t divisor = 1;  ///< applied to finished values
  bool in_place = false;
  bool check_tags = true;
  std::size_t address_bytes = ~std::size_t{0};  ///< smallest chunk that goes by address
  std::size_t share_bytes = ~std::size_t{0};    ///< smallest such chunk that both ends may copy
  bool cold_input = false;   ///< host: no cache holds the input (host/warm_buffers.h)
  bool cold_output = false;  ///< host: nor what the output replaces
  CallTag tag;
};

/// One operand of a transfer: memory of this process, or of another one.
struct Source {
  const std::byte* data = nullptr;
  std::uint64_t remote = 0;
  int process = 0;         ///< 0: `data` counts; else `remote` in the process of this pid
  std::uint32_t flag = 0;  ///< protocol ll: what stands beside every four bytes when they are there
  const ReceiveEnd* link = nullptr;  ///< host: the process that has the data, if it is `remote`
};

/// Where a transfer's result goes; nowhere when `data` is null.
struct Destination {
  std::byte* data = nullptr;
  std::uint32_t flag = 0;  ///< protocol ll: what to store beside every four bytes
};

struct Transfer {
  std::uint32_t num_sources = 0;
  std::uint32_t num_destinations = 0;  ///< those that are nowhere counted too
  std::int32_t scaled_source = -1;
  std::uint32_t divisor = 1;
  std::size_t count = 0;  ///< elements
};

}  // namespace ropewalk::executor
