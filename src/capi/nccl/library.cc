// The library itself: version, texts of errors, logging.
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/structures.h"
#include "core/log.h"
#include "ropewalk/ropewalk.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

namespace ropewalk::nccl {

void log_version() noexcept {
  if (!log::enabled(log::Level::kVersion, log::kAll)) return;
  try {
    log::write(
        log::Level::kVersion, log::kAll,
        fmt::format("NCCL version 2.28.9, by Ropewalk {}.{}.{}", RW_MAJOR, RW_MINOR, RW_PATCH));
  } catch (...) {
  }
}

}  // namespace ropewalk::nccl

RW_NCCL_API(ncclResult_t, ncclGetVersion, int* version) {
  return guarded("ncclGetVersion", [&] { checked(version, "version") = kNcclVersion; });
}

RW_NCCL_API(const char*, ncclGetErrorString, ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "another rank ended, was lost or did not answer in time";
    case ncclInProgress: return "operation in progress";
    case ncclTimeout: return "timeout";
  }
  return "unknown result code";
}

// The error that broke `comm`; else the last error in this process, as with NCCL.
RW_NCCL_API(const char*, ncclGetLastError, ncclComm_t comm) {
  read_environment();
  try {
    if (comm != nullptr) {
      const Core& core = core_of(comm);
      if (core.state.load(std::memory_order_acquire) == Core::State::kReady &&
          core.comm != nullptr && core.comm->failure().broken()) {
        thread_local std::string text;
        text = core.comm->failure().error().what();
        return text.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer): the thread has it
      }
    }
  } catch (const std::exception& error) {
    report("ncclGetLastError", error.what());
  }
  return last_error();
}

RW_NCCL_API(void, ncclResetDebugInit) { reread_environment(); }

// The same; NVIDIA's library has it under this name alone.
extern "C" __attribute__((visibility("default"))) void ncclResetDebugInitInternal() {
  reread_environment();
}

RW_NCCL_API(ncclResult_t, ncclSetEncryption, const ncclEncryptionConfig_t* config) {
  return guarded("ncclSetEncryption", [&] {
    const ncclEncryptionConfig_t known = copy_known(
        checked(config, "config"), ncclEncryptionConfig_t{}, offsetof(ncclEncryptionConfig_t, psk),
        "config", "NCCL_ENCRYPTION_CONFIG_INITIALIZER");
    if (known.mode == kNcclEncryptionNone) return;
    if (known.mode != kNcclEncryptionPsk) {
      throw Error(Errc::kInvalidArgument, "config: mode is {}, neither 0 nor 1", known.mode);
    }
    throw Error(Errc::kInvalidUsage,
                "config: mode is 1 (PSK). Ropewalk's sockets prove that both ends know the "
                "communicator's secret, and encrypt nothing");
  });
}
