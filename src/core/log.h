// Logging in NCCL's line format: `host:pid:tid [device] ROPEWALK INFO text`.
//
// ROPEWALK_DEBUG (NONE, VERSION, WARN, INFO, TRACE) picks the level, ROPEWALK_DEBUG_SUBSYS the
// subsystems of INFO and TRACE lines (comma list, `^` in front inverts, ALL), ROPEWALK_DEBUG_FILE
// the file (%h host, %p pid). Each line is one write(2), so lines of several processes never mix.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

namespace ropewalk::log {

enum class Level : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kTrace = 5 };

enum Subsystem : std::uint32_t {
  kInit = 1,
  kColl = 2,
  kP2p = 4,
  kShm = 8,
  kNet = 16,
  kGraph = 32,
  kTuning = 64,
  kEnv = 128,
  kAlloc = 256,
  kCall = 512,
  kBootstrap = 4096,
  kAll = ~0U,
};

/// Receives lines instead of the file: another library's log, which filters them itself.
using Sink = void (*)(Level level, std::uint32_t subsystem, const char* text);
/// From now on every line up to INFO goes to `sink`; nullptr restores the file. Threads: a line
/// that is being written may still go to the former destination.
void set_sink(Sink sink) noexcept;

/// Also receives every warning, shown or not: for tools that report to their user in their own
/// words. nullptr ends it. Threads: as set_sink().
void set_listener(Sink listener) noexcept;

/// Settings as `core/settings.h` reads them. Throws Error(kInvalidArgument) for an unknown level,
/// subsystem or an unwritable file. May be called again; later lines use the new values.
void configure(std::string_view level, std::string_view subsystems, std::string_view file);

bool enabled(Level level, std::uint32_t subsystem) noexcept;
namespace detail {
extern std::atomic<bool> traces;
}
/// Whether lines of Level::kTrace are shown, of some subsystem at least. One load.
inline bool traces() noexcept { return detail::traces.load(std::memory_order_relaxed); }
void write(Level level, std::uint32_t subsystem, std::string_view text) noexcept;

template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarn, kAll)) {
    write(Level::kWarn, kAll, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void info(Subsystem subsystem, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo, subsystem)) {
    write(Level::kInfo, subsystem, fmt::format(format, std::forward<Args>(args)...));
  }
}
/// For what happens in every operation.
template <typename... Args>
void trace(Subsystem subsystem, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kTrace, subsystem)) {
    write(Level::kTrace, subsystem, fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace ropewalk::log
