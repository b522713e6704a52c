#include "capi/nccl/handle.h"

#include "capi/nccl/windows.h"

namespace ropewalk::nccl {
namespace {

void require_ready(Core& core) {
  switch (core.state.load(std::memory_order_acquire)) {
    case Core::State::kReady: return;
    case Core::State::kBusy:
      throw Error(Errc::kInvalidArgument,
                  "comm: an earlier call on it is still in progress (ncclCommGetAsyncError)");
    case Core::State::kFailed: break;
  }
  const std::lock_guard lock(core.mutex);
  throw *core.error;
}

}  // namespace

Core::~Core() {
  for (Registration* registration : registrations) delete registration;
  // Nothing of it may be under way when windows are unmapped.
  one_sided.reset();
  comm.reset();
  device_comms.reset();
  remove_windows_of(*this);
}

void Core::begin() {
  require_ready(*this);
  const std::lock_guard lock(mutex);
  state.store(State::kBusy, std::memory_order_release);
}

void Core::end(std::unique_ptr<comm::Communicator> made, std::unique_ptr<OneSided> its_one_sided) {
  const std::lock_guard lock(mutex);
  if (made != nullptr) {
    comm = std::move(made);
    one_sided = std::move(its_one_sided);
  }
  if (abandoned && comm != nullptr) comm->abort("ncclCommAbort was called");
  state.store(State::kReady, std::memory_order_release);
}

void Core::fail(const Error& reason) {
  const std::lock_guard lock(mutex);
  error = reason;
  state.store(State::kFailed, std::memory_order_release);
}

Core& core_of(ncclComm_t comm) {
  if (comm == nullptr) throw Error(Errc::kInvalidArgument, "comm: NULL");
  if (comm->mark != ncclComm::kMark) {
    throw Error(Errc::kInvalidArgument, "comm: {} is no communicator, or one that was destroyed",
                static_cast<void*>(comm));
  }
  comm->core->belonging.require_here("the communicator");
  return *comm->core;
}

Core& ready(ncclComm_t comm) {
  Core& core = core_of(comm);
  require_ready(core);
  return core;
}

Core& usable(ncclComm_t comm) {
  Core& core = ready(comm);
  require_unrevoked(core);
  return core;
}

// Another rank may have revoked it first, which is an error of its own.
void require_unrevoked(const Core& core) {
  if (core.revoked.load(std::memory_order_acquire)) {
    throw Error(Errc::kInvalidUsage, "comm: ncclCommRevoke was called on it");
  }
}

}  // namespace ropewalk::nccl
