#include "capi/nccl/guard.h"

#include <mutex>

#include "capi/nccl/group.h"
#include "core/log.h"

namespace ropewalk::nccl {
namespace {

// NCCL keeps one text for the process: programs ask from another thread than the one that failed.
struct LastError {
  std::mutex mutex;
  std::string text;  // guarded by mutex
};

LastError& of_process() {
  static auto* last = new LastError;  // used by threads that outlive main()
  return *last;
}

}  // namespace

ncclResult_t to_nccl(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return ncclInvalidArgument;
    case Errc::kInvalidUsage: return ncclInvalidUsage;
    case Errc::kSystem: return ncclSystemError;
    case Errc::kCuda: return ncclUnhandledCudaError;
    case Errc::kPeerLost: return ncclRemoteError;
    case Errc::kTimeout: return ncclRemoteError;
    case Errc::kAborted:
    case Errc::kInterrupted: return ncclInvalidUsage;
    case Errc::kInternal: return ncclInternalError;
  }
  return ncclInternalError;
}

void report(const char* entry, const std::string& text) noexcept {
  log::warn("{}: {}", entry, text);
  try {
    const std::lock_guard lock(of_process().mutex);
    of_process().text = fmt::format("{}: {}", entry, text);
  } catch (...) {
  }
}

const char* last_error() noexcept {
  thread_local std::string copy;
  try {
    const std::lock_guard lock(of_process().mutex);
    copy = of_process().text;
  } catch (...) {
  }
  return copy.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer): the thread has it
}

ncclResult_t not_offered(const char* entry, const char* reason) noexcept {
  return guarded(entry, [&] {
    throw Error(Errc::kInvalidUsage, "Ropewalk does not offer this function: {}", reason);
  });
}

ncclResult_t report_current(const char* entry) noexcept {
  ncclResult_t result = ncclInternalError;
  try {
    throw;
  } catch (const Error& error) {
    report(entry, error.what());
    result = to_nccl(error.code());
  } catch (const std::exception& error) {
    report(entry, error.what());
  } catch (...) {
    report(entry, "unknown exception");
  }
  Group::of_thread().note(result);
  return result;
}

}  // namespace ropewalk::nccl
