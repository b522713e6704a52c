// One-sided operations: what one rank does with memory that another one registered.
#include <limits>
#include <memory>
#include <vector>

#include "capi/nccl/group.h"
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/one_sided.h"
#include "capi/nccl/types.h"
#include "capi/nccl/windows.h"

namespace ropewalk::nccl {
namespace {

using Specs = std::vector<message::OperationSpec>;

void require_no_flags(unsigned flags) {
  if (flags != 0) throw Error(Errc::kInvalidArgument, "flags: {} is not 0", flags);
}

std::size_t bytes_of(std::size_t count, ncclDataType_t type) {
  const std::size_t each = size_of(type_of(type));
  if (count > std::numeric_limits<std::size_t>::max() / each) {
    throw Error(Errc::kInvalidArgument, "count: {} elements of {} bytes", count, each);
  }
  return count * each;
}

// Now, or at the end of the open group.
void perform(const Core& core, const Specs& specs, ncclStream_t stream) {
  Group& group = Group::of_thread();
  if (group.open()) {
    group.one_sided().add(*core.one_sided, specs, stream);
  } else {
    OneSidedCalls::run(*core.one_sided, specs, stream);
  }
}

void put_signal(const void* source, std::size_t count, ncclDataType_t type, int peer,
                ncclWindow_t handle, std::size_t offset, int index, int context, unsigned flags,
                ncclComm_t comm, ncclStream_t stream) {
  const Core& core = usable(comm);
  require_no_flags(flags);
  const std::size_t bytes = bytes_of(count, type);
  if (handle == nullptr) throw Error(Errc::kInvalidArgument, "peerWin: NULL");
  const std::shared_ptr<const Window> window = own_window(core, handle);
  if (window->puts == nullptr) {
    throw Error(Errc::kInvalidUsage, "peerWin: its ranks cannot put to it: {}", window->refusal);
  }
  Specs specs;
  core.one_sided->put(specs, *window->puts, peer, offset, source, bytes, index, context);
  perform(core, specs, stream);
}

void signal(int peer, int index, int context, unsigned flags, ncclComm_t comm,
            ncclStream_t stream) {
  const Core& core = usable(comm);
  require_no_flags(flags);
  Specs specs;
  core.one_sided->signal(specs, peer, index, context);
  perform(core, specs, stream);
}

void wait_signal(int count, const ncclWaitSignalDesc_t* waits, ncclComm_t comm,
                 ncclStream_t stream) {
  const Core& core = usable(comm);
  if (count < 1) throw Error(Errc::kInvalidArgument, "nDesc: {} is not positive", count);
  checked(waits, "signalDescs");
  Specs specs;
  for (int k = 0; k < count; ++k) {
    const ncclWaitSignalDesc_t& one = waits[k];
    if (one.opCnt < 1) {
      throw Error(Errc::kInvalidArgument, "signalDescs[{}]: opCnt: {} is not positive", k,
                  one.opCnt);
    }
    core.one_sided->wait(specs, one.peer, one.sigIdx, one.ctx,
                         static_cast<std::uint64_t>(one.opCnt));
  }
  perform(core, specs, stream);
}

}  // namespace
}  // namespace ropewalk::nccl

using namespace ropewalk::nccl;  // NOLINT: this file is the edge

// The source may be any memory that the stream can read; NVIDIA's must be in a window, too.
RW_NCCL_API(ncclResult_t, ncclPutSignal, const void* localbuff, std::size_t count,
            ncclDataType_t type, int peer, ncclWindow_t window, std::size_t offset, int index,
            int context, unsigned flags, ncclComm_t comm, ncclStream_t stream) {
  return guarded("ncclPutSignal", [&] {
    put_signal(localbuff, count, type, peer, window, offset, index, context, flags, comm, stream);
  });
}

RW_NCCL_API(ncclResult_t, ncclSignal, int peer, int index, int context, unsigned flags,
            ncclComm_t comm, ncclStream_t stream) {
  return guarded("ncclSignal", [&] { signal(peer, index, context, flags, comm, stream); });
}

// Waits are for signals that no earlier call waited for.
RW_NCCL_API(ncclResult_t, ncclWaitSignal, int count, ncclWaitSignalDesc_t* descriptors,
            ncclComm_t comm, ncclStream_t stream) {
  return guarded("ncclWaitSignal", [&] { wait_signal(count, descriptors, comm, stream); });
}
