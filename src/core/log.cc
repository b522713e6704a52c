#include "core/log.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string>

#include "core/error.h"
#include "core/file_pattern.h"

namespace ropewalk::log {
namespace {

struct State {
  std::atomic<int> level{static_cast<int>(Level::kVersion)};
  std::atomic<std::uint32_t> subsystems{kInit | kBootstrap | kEnv};
  std::atomic<int> fd{STDERR_FILENO};
  std::atomic<Sink> sink{nullptr};
  std::atomic<Sink> listener{nullptr};
};

// The one process-wide value: a log line has no communicator to belong to.
State& state() noexcept {
  static State s;
  return s;
}

struct SubsystemName {
  std::string_view text;
  std::uint32_t bit;
};
constexpr std::array<SubsystemName, 12> kSubsystems = {{{"INIT", kInit},
                                                        {"COLL", kColl},
                                                        {"P2P", kP2p},
                                                        {"SHM", kShm},
                                                        {"NET", kNet},
                                                        {"GRAPH", kGraph},
                                                        {"TUNING", kTuning},
                                                        {"ENV", kEnv},
                                                        {"ALLOC", kAlloc},
                                                        {"CALL", kCall},
                                                        {"BOOTSTRAP", kBootstrap},
                                                        {"ALL", kAll}}};

Level parse_level(std::string_view text) {
  if (text.empty() || text == "VERSION") return Level::kVersion;
  if (text == "NONE") return Level::kNone;
  if (text == "WARN") return Level::kWarn;
  if (text == "INFO") return Level::kInfo;
  if (text == "TRACE") return Level::kTrace;
  throw Error(Errc::kInvalidArgument,
              "ROPEWALK_DEBUG: \"{}\" is not one of NONE, VERSION, WARN, INFO, TRACE", text);
}

std::uint32_t parse_subsystems(std::string_view text) {
  if (text.empty()) return kInit | kBootstrap | kEnv;
  const bool invert = text.front() == '^';
  if (invert) text.remove_prefix(1);
  std::uint32_t bits = 0;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view word = text.substr(0, comma);
    std::uint32_t bit = 0;
    for (const SubsystemName& known : kSubsystems) {
      if (known.text == word) bit = known.bit;
    }
    if (bit == 0) {
      throw Error(Errc::kInvalidArgument, "ROPEWALK_DEBUG_SUBSYS: unknown subsystem \"{}\"", word);
    }
    bits |= bit;
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return invert ? ~bits : bits;
}

std::string_view name(Level level) noexcept {
  switch (level) {
    case Level::kNone: return "NONE";
    case Level::kVersion: return "VERSION";
    case Level::kWarn: return "WARN";
    case Level::kInfo: return "INFO";
    case Level::kTrace: return "TRACE";
  }
  return "?";
}

// By the level and the subsystems that were asked for.
bool shown(Level level, std::uint32_t subsystem) noexcept {
  if (state().sink.load(std::memory_order_relaxed) != nullptr) return level <= Level::kInfo;
  if (static_cast<int>(level) > state().level.load(std::memory_order_relaxed)) return false;
  return level <= Level::kWarn || (subsystem & state().subsystems.load(std::memory_order_relaxed));
}

}  // namespace

void configure(std::string_view level, std::string_view subsystems, std::string_view file) {
  const Level new_level = parse_level(level);
  const std::uint32_t new_subsystems = parse_subsystems(subsystems);
  int fd = STDERR_FILENO;
  if (!file.empty()) {
    const std::string path = expand_file_pattern("DEBUG_FILE", file);
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) throw system_error(errno, fmt::format("ROPEWALK_DEBUG_FILE: open {}", path));
  }
  const int old_fd = state().fd.exchange(fd);
  if (old_fd != STDERR_FILENO) close(old_fd);
  state().level = static_cast<int>(new_level);
  detail::traces = new_level == Level::kTrace;
  state().subsystems = new_subsystems;
}

std::atomic<bool> detail::traces{false};

void set_sink(Sink sink) noexcept { state().sink = sink; }
void set_listener(Sink listener) noexcept { state().listener = listener; }

bool enabled(Level level, std::uint32_t subsystem) noexcept {
  if (level == Level::kWarn && state().listener.load(std::memory_order_relaxed) != nullptr) {
    return true;
  }
  return shown(level, subsystem);
}

void write(Level level, std::uint32_t subsystem, std::string_view text) noexcept {
  try {
    if (level == Level::kWarn) {
      if (const Sink listener = state().listener.load(std::memory_order_relaxed)) {
        listener(level, subsystem, std::string(text).c_str());
      }
      if (!shown(level, subsystem)) return;
    }
    if (const Sink sink = state().sink.load(std::memory_order_relaxed)) {
      sink(level, subsystem, std::string(text).c_str());
      return;
    }
    static const std::string host = short_host_name();
    const std::string line = fmt::format("{}:{}:{} [0] ROPEWALK {} {}\n", host, getpid(),
                                         syscall(SYS_gettid), name(level), text);
    // A log that cannot be written must not stop a collective.
    [[maybe_unused]] const ssize_t written =
        ::write(state().fd.load(std::memory_order_relaxed), line.data(), line.size());
  } catch (...) {
  }
}

}  // namespace ropewalk::log
