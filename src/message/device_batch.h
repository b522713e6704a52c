// A prepared batch as kernels launch it (rwDeviceBatch): tables in memory that they read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "message/operation.h"
#include "ropewalk/device_window.h"

namespace ropewalk::message {

struct DeviceBatch {
  rwDeviceBatch handle{};
  std::uint64_t bytes = 0;  ///< of all puts
  bool carried = false;     ///< a link carries some of it
  std::shared_ptr<void> memory;
};

/// Why kernels cannot launch such a batch, in words; nothing where they can. They do all puts
/// together, then all signals, then all waits.
std::optional<std::string> reason_against_kernels(std::span<const OperationSpec> specs);

/// How many threads share a put of at most `most_bytes`, of which there are `num_puts`.
std::uint32_t lanes_of(std::uint64_t most_bytes, std::size_t num_puts) noexcept;

}  // namespace ropewalk::message
