// What an ncclComm_t points to.
//
// A communicator of NCCL may be in the making: of a group until its end, of a non-blocking
// communicator until its thread is done. The handle exists from the first call on, its Communicator
// from the moment when joining succeeded.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "capi/nccl/config.h"
#include "capi/nccl/device_comms.h"
#include "capi/nccl/nccl_api.h"
#include "capi/nccl/one_sided.h"
#include "comm/communicator.h"
#include "comm/made_operators.h"
#include "core/fork.h"

namespace ropewalk::nccl {

/// Registered memory: ncclCommRegister's handle.
struct Registration {
  void* buffer;
  std::size_t bytes;
};

/// Shared by the handle and a thread that works for it, so that ncclCommAbort need not wait for it.
///
/// Threads: `state` and what asks it, any; the rest as Communicator.
struct Core {
  Core(int gpu, const CommConfig& wishes)
      : device(gpu), blocking(wishes.blocking), config(wishes) {}
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  const Belonging belonging;
  const int device;
  const bool blocking;
  const CommConfig config;
  std::unique_ptr<comm::Communicator> comm;   // while `state` is not kBusy
  std::unique_ptr<OneSided> one_sided;        // of `comm`
  std::unique_ptr<DeviceComms> device_comms;  // of `comm`, made with the first of them
  comm::MadeOperators operators;
  std::set<Registration*> registrations;

  std::atomic<bool> revoked{false};  // by ncclCommRevoke

  enum class State { kBusy, kReady, kFailed };
  std::atomic<State> state{State::kBusy};
  std::mutex mutex;            // guards all below, and changes of `state`
  std::optional<Error> error;  // of kFailed
  bool abandoned = false;      // ncclCommAbort or ncclCommRevoke came while it was busy

  ~Core();

  /// Busy again, for a thread that works on it.
  /// @throws Error as ready()
  void begin();
  /// The thread is done; `made` is the new Communicator, or nullptr to keep the old one.
  void end(std::unique_ptr<comm::Communicator> made,
           std::unique_ptr<OneSided> its_one_sided = nullptr);
  void fail(const Error& reason);
};

}  // namespace ropewalk::nccl

struct ncclComm {
  explicit ncclComm(std::shared_ptr<ropewalk::nccl::Core> shared) : core(std::move(shared)) {}
  ~ncclComm() { mark = 0; }
  ncclComm(const ncclComm&) = delete;
  ncclComm& operator=(const ncclComm&) = delete;

  static constexpr std::uint64_t kMark = 0x6b6c6177'65706f72;
  std::uint64_t mark =
      kMark;  // distinguishes a handle from other memory, and from a destroyed handle
  std::shared_ptr<ropewalk::nccl::Core> core;
};

namespace ropewalk::nccl {

/// @throws Error kInvalidArgument for NULL and for other pointers that are not communicators
Core& core_of(ncclComm_t comm);
/// The communicator behind a handle.
/// @throws Error kInvalidArgument while it is in the making; the reason why that failed
Core& ready(ncclComm_t comm);
/// The same, to work with it.
/// @throws Error kInvalidUsage after ncclCommRevoke
Core& usable(ncclComm_t comm);
void require_unrevoked(const Core& core);

}  // namespace ropewalk::nccl
