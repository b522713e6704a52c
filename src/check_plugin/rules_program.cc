// Rules about the program that loads a plugin: its descriptors, its processes, its life.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/processes.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

// Longer than the usual polling periods of libraries.
constexpr std::chrono::milliseconds kRest{600};

void connect_once(Session& session, void* context, const std::function<void(Call)>& after) {
  Listening listening(session, context);
  after(Call::kListen);
  Connecting connecting(session, context, listening.handle());
  Accepting accepting(session, listening.comm());
  establish(session, connecting, accepting);
  after(Call::kConnect);
  listening.close();
  after(Call::kCloseListen);
  send_to_self(session, connecting.comm(), accepting.comm(), 5);
  after(Call::kTest);
  session.expect(session.plugin().close_send(connecting.comm()), Call::kCloseSend);
  after(Call::kCloseSend);
  session.expect(session.plugin().close_recv(accepting.comm()), Call::kCloseRecv);
  after(Call::kCloseRecv);
}

// The life of a communicator, without a connection if the plugin cannot connect to itself. `after`
// is called after each call of the plugin that begins or ends something.
void live(Session& session, const std::function<void(Call)>& after) {
  session.load();
  after(Call::kLoad);
  void* context = session.new_context();
  after(Call::kInit);
  int count = 0;
  session.expect(session.plugin().devices(&count), Call::kDevices);
  after(Call::kDevices);
  Properties properties;
  session.expect(session.plugin().properties(session.device(), properties), Call::kGetProperties);
  after(Call::kGetProperties);
  if (session.options().connects) connect_once(session, context, after);
  session.end_context(context);
  after(Call::kFinalize);
}

// As much of it as works: what does not is for other rules. `after` throws nothing.
void live_as_far_as_it_goes(Session& session, const std::function<void(Call)>& after) {
  try {
    live(session, after);
  } catch (const Failed&) {
  }
}

// The object to which a descriptor refers.
struct File {
  int descriptor;
  dev_t device;
  ino_t number;

  [[nodiscard]] bool still_there() const {
    struct stat now {};
    return fstat(descriptor, &now) == 0 && now.st_dev == device && now.st_ino == number;
  }
};

std::vector<File> open_files() {
  std::vector<File> files;
  for (int descriptor = 0; descriptor < 1024; ++descriptor) {
    struct stat found {};
    if (fstat(descriptor, &found) == 0) files.push_back({descriptor, found.st_dev, found.st_ino});
  }
  return files;
}

void check_descriptors(Session& session) {
  // Of the kinds that programs have; they end with the process.
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0 ||
      open("/proc/self/exe", O_RDONLY | O_CLOEXEC) < 0) {
    throw Skipped{"descriptors of the program"};
  }
  const std::vector<File> before = open_files();
  std::optional<Failed> found;
  live_as_far_as_it_goes(session, [&](Call call) {
    if (found) return;
    std::vector<int> lost;
    for (const File& file : before) {
      if (!file.still_there()) lost.push_back(file.descriptor);
    }
    if (lost.empty()) return;
    found = Failed{"the program's descriptors as they were",
                   fmt::format("{} of {} are closed or another file after {}: {}", lost.size(),
                               before.size(), name(call), fmt::join(lost, ", "))};
  });
  if (found) throw Failed{*found};
}

// This process is the program that ends; its leftovers are searched afterwards.
void check_processes(Session& session) {
  session.own().must_leave_none.store(true);
  // One whose parent has ended is the checker's.
  const auto others = [] {
    std::set<pid_t> pids;
    for (const Process& process : children_of({getpid(), getppid()})) pids.insert(process.pid);
    return pids;
  };
  const std::set<pid_t> before = others();
  live_as_far_as_it_goes(session, [&](Call call) {
    // Most plugins start processes here; each check reads all of /proc.
    const bool looks = call == Call::kLoad || call == Call::kInit || call == Call::kConnect ||
                       call == Call::kFinalize;
    if (!looks || session.own().started_process.load() != Call::kNone) return;
    const std::set<pid_t> now = others();
    if (std::includes(before.begin(), before.end(), now.begin(), now.end())) return;
    session.own().started_process.store(call);
  });
}

void check_rest(Session& session) {
  live_as_far_as_it_goes(session, [](Call /*call*/) {});
  std::this_thread::sleep_for(kRest);
}

constexpr std::string_view kProgram = "the program that uses NCCL";

constexpr Rule kProgramRules[] = {
    {"descriptors", "The program's descriptors stay open",
     "They are files and connections of the program; data written to one that was closed and "
     "opened again goes to the wrong file.",
     kProgram, "init", 1, 1, check_descriptors, "", "self-connection"},
    {"processes", "No process of the plugin outlives the program",
     "Launchers wait for all that holds the job's output or cgroup: a job that ended does not end.",
     kProgram, "init", 1, 1, check_processes, "", "self-connection"},
    {"rest", "Nothing happens to the program after its last communicator",
     "Programs go on for long without NCCL: a thread that was left behind must not end them.",
     kProgram, "init", 1, 1, check_rest, "early-end", "self-connection"},
};

}  // namespace

std::span<const Rule> program_rules() { return kProgramRules; }

}  // namespace ropewalk::check_plugin
