// The bytes that NCCL carries from a listener to the connecting side.
//
// First a checksum, then what the transport's listener wants to say. NCCL hands the connecting
// side its own copy, the same at each call until connect is done; the last eight bytes of that copy
// hold the number of the attempt that is under way. NCCL up to 2.11 carries half as many bytes, and
// calls connect only once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "netplugin/abi/common.h"
#include "transport/transport.h"

namespace ropewalk::netplugin {

/// How many bytes NCCL carries.
enum class HandleSize : std::size_t { kShort = abi::kShortHandleBytes, kFull = abi::kHandleBytes };

/// Bytes for the transport's handle.
std::size_t room_in(HandleSize size) noexcept;

/// Fills all of `target`, which may be unaligned.
/// @throws Error kInvalidUsage when the transport's handle does not fit
void write_handle(const transport::Handle& handle, HandleSize size, void* target);

/// @throws Error kInvalidArgument when the bytes are none that write_handle() made
transport::Handle read_handle(HandleSize size, const void* source);

/// The number of the attempt in progress; nullptr for none. Only in full handles.
void* read_attempt(const void* handle) noexcept;
void write_attempt(void* handle, void* attempt) noexcept;

}  // namespace ropewalk::netplugin
