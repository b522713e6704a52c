#include "check_plugin/processes.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX's
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>

namespace ropewalk::check_plugin {
namespace {

constexpr useconds_t kPollUs = 5'000;

// Of /proc/PID/stat: "pid (name) state parent ...", where the name may have anything in it.
bool parse(const std::string& stat, pid_t& parent, std::string& name) {
  const std::size_t open = stat.find('(');
  const std::size_t close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 4 > stat.size()) {
    return false;
  }
  name = stat.substr(open + 1, close - open - 1);
  const char* number = stat.data() + close + 4;
  return std::from_chars(number, stat.data() + stat.size(), parent).ec == std::errc{};
}

bool contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

}  // namespace

std::vector<Process> children_of(const std::vector<pid_t>& parents) {
  std::vector<Process> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string file = entry.path().filename();
    pid_t pid = 0;
    if (std::from_chars(file.data(), file.data() + file.size(), pid).ec != std::errc{}) continue;
    std::ifstream stream(entry.path() / "stat");
    // A process may end while it is read, which getline takes for the end.
    std::string stat;
    std::getline(stream, stat, '\0');
    pid_t parent = 0;
    std::string name;
    if (parse(stat, parent, name) && contains(parents, parent)) found.push_back({pid, name});
  }
  return found;
}

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<Process> end_orphans(const std::vector<pid_t>& spared,
                                 std::chrono::milliseconds grace) {
  std::vector<Process> left;
  siginfo_t info{};
  if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return left;
  const auto end = std::chrono::steady_clock::now() + grace;
  // Each that is ended may leave children in turn.
  for (;;) {
    const bool waits = std::chrono::steady_clock::now() < end;
    bool running = false;
    for (const Process& process : children_of({getpid()})) {
      if (contains(spared, process.pid)) continue;
      if (waitpid(process.pid, nullptr, WNOHANG) == process.pid) continue;
      running = true;
      if (waits) continue;
      left.push_back(process);
      kill(process.pid, SIGKILL);
      waitpid(process.pid, nullptr, 0);
    }
    if (!running) return left;
    if (waits) usleep(kPollUs);
  }
}

}  // namespace ropewalk::check_plugin
