#include "netplugin/report.h"

#include <atomic>
#include <new>

#include "core/log.h"

namespace ropewalk::netplugin {
namespace {

// Process-wide, as NCCL's log is.
std::atomic<abi::Logger> nccl_logger = nullptr;
std::atomic<bool> remote_error_known = true;

// Levels and subsystems have NCCL's numbers (core/log.h).
void write_to_nccl(log::Level level, std::uint32_t subsystem, const char* text) {
  const abi::Logger logger = nccl_logger.load(std::memory_order_relaxed);
  if (logger == nullptr) return;
  const unsigned long subsystems = subsystem == log::kAll ? abi::kLogAll : subsystem;
  // NCCL shows file and line of warnings alone; the text says more than they would.
  logger(static_cast<int>(level), subsystems, "libnccl-net-ropewalk", 0, "NET/Ropewalk : %s", text);
}

}  // namespace

void log_to(abi::Logger logger) noexcept {
  nccl_logger = logger;
  log::set_sink(logger != nullptr ? write_to_nccl : nullptr);
}

void set_remote_error_known(bool known) noexcept { remote_error_known = known; }

abi::Result result_of(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return abi::kInvalidArgument;
    case Errc::kInvalidUsage: return abi::kInvalidUsage;
    case Errc::kSystem: return abi::kSystemError;
    case Errc::kCuda: return abi::kUnhandledCudaError;
    // NCCL has a number for timeouts only from 2.30.
    case Errc::kPeerLost:
    case Errc::kTimeout: return remote_error_known ? abi::kRemoteError : abi::kSystemError;
    case Errc::kAborted:
    case Errc::kInterrupted: return abi::kInvalidUsage;
    case Errc::kInternal: return abi::kInternalError;
  }
  return abi::kInternalError;
}

abi::Result report(const char* call, const Error& error) noexcept {
  try {
    log::warn("{}: {}", call, error.what());
  } catch (...) {
    // Out of memory for the line: the code alone must do.
  }
  return result_of(error.code());
}

abi::Result report_current(const char* call) noexcept {
  try {
    try {
      throw;
    } catch (const KnownError& error) {
      return result_of(error.code());
    } catch (const Error& error) {
      return report(call, error);
    } catch (const std::bad_alloc&) {
      return report(call, Error(Errc::kSystem, "out of memory"));
    } catch (const std::exception& error) {
      return report(call, Error(Errc::kInternal, "{}", error.what()));
    }
  } catch (...) {
    return abi::kInternalError;
  }
}

}  // namespace ropewalk::netplugin
