// Memory for communication, and its registration.
//
// Any memory of the GPU will do for every operation. What all ranks register together are windows
// (windows.cc). ncclCommRegister is local: a rank cannot open what another one registers without
// hearing of it, so the buffer is remembered, and given back as a handle.
#include <memory>

#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "comm/device_memory.h"

namespace ropewalk::nccl {
namespace {

Registration* remember(Core& core, void* buffer, std::size_t bytes) {
  if (buffer == nullptr) throw Error(Errc::kInvalidArgument, "buff: NULL");
  if (bytes == 0) throw Error(Errc::kInvalidArgument, "size: 0");
  auto made = std::make_unique<Registration>(Registration{buffer, bytes});
  core.registrations.insert(made.get());
  return made.release();
}

void forget(Core& core, void* handle) {
  auto* registration = static_cast<Registration*>(handle);
  if (core.registrations.erase(registration) == 0) {
    throw Error(Errc::kInvalidArgument, "handle: {} is not registered with this communicator",
                handle);
  }
  delete registration;
}

}  // namespace
}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

RW_NCCL_API(ncclResult_t, ncclMemAlloc, void** pointer, std::size_t bytes) {
  return guarded("ncclMemAlloc",
                 [&] { checked(pointer, "ptr") = comm::take_device_memory(bytes); });
}

RW_NCCL_API(ncclResult_t, ncclMemFree, void* pointer) {
  return guarded("ncclMemFree", [&] { comm::give_device_memory(pointer); });
}

RW_NCCL_API(ncclResult_t, ncclCommRegister, const ncclComm_t comm, void* buffer, std::size_t bytes,
            void** handle) {
  return guarded("ncclCommRegister",
                 [&] { checked(handle, "handle") = remember(ready(comm), buffer, bytes); });
}

RW_NCCL_API(ncclResult_t, ncclCommDeregister, const ncclComm_t comm, void* handle) {
  return guarded("ncclCommDeregister", [&] { forget(ready(comm), handle); });
}
