#include "check_plugin/supervisor.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX's
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

constexpr std::array<const char*, kMostProcesses> kSides = {"sender", "receiver"};
// For what a child still does after the other has failed.
constexpr std::chrono::milliseconds kGrace{1500};

struct Child {
  pid_t pid = -1;
  bool ended = false;
  int status = 0;
};

void fail(Page& page, int process, const std::string& expected, const std::string& came) {
  ProcessPage& own = page.processes[static_cast<std::size_t>(process)];
  put_text(own.expected, expected);
  put_text(own.came, came);
  own.state.store(State::kFailed);
  int none = 0;
  page.first_failed.compare_exchange_strong(none, process + 1);
  page.stop.store(true);
}

void child_main(const Options& options, Page& page, int process,
                const std::function<void(Session&)>& body) {
  ProcessPage& own = page.processes[static_cast<std::size_t>(process)];
  own.pid.store(getpid());
  note_crashes(own);
  try {
    Session session(options, page, process);
    body(session);
    own.state.store(State::kPassed);
  } catch (const Failed& failed) {
    fail(page, process, failed.expected, failed.came);
  } catch (const Skipped& skipped) {
    put_text(own.expected, skipped.missing);
    own.state.store(State::kSkipped);
    page.stop.store(true);
  } catch (const Stopped&) {
    own.state.store(State::kStopped);
  } catch (const std::exception& error) {
    fail(page, process, "the check can be made", error.what());
  }
}

Child start(const Options& options, Page& page, int process,
            const std::function<void(Session&)>& body) {
  Child child;
  child.pid = fork();
  if (child.pid < 0) throw system_error(errno, "starting a process");
  if (child.pid == 0) {
    // A group of its own, so that what the plugin starts ends with it.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output is for the report
    child_main(options, page, process, body);
    _exit(0);
  }
  return child;
}

// The call that some thread is in; several: the first.
Call present_call(const ProcessPage& page) {
  const int threads = std::min(page.threads.load(), kMostThreads);
  for (int i = 0; i < threads; ++i) {
    const Call call = page.calls[static_cast<std::size_t>(i)].load();
    if (call != Call::kNone) return call;
  }
  return Call::kNone;
}

// How a child came to its end.
struct Ending {
  bool hung;     // it was killed
  bool stopped;  // the other had failed before
  int status;    // as waitpid gives it
  Call call;     // that it was in
  bool failed_first;
  double seconds;
};

// What one child says. The verdict that weighs most is the rule's: a crash, then a hang in a call,
// then what a child found.
struct Judged {
  Verdict verdict;
  int weight = 0;
};

std::string where(Call call) {
  return call == Call::kNone ? "outside the plugin's functions" : fmt::format("in {}", name(call));
}

Judged failed(int weight, std::string expected, std::string came, Call call = Call::kNone) {
  Verdict verdict;
  verdict.state = State::kFailed;
  verdict.expected = std::move(expected);
  verdict.came = std::move(came);
  verdict.call = name(call);
  return {std::move(verdict), weight};
}

Judged judge(const ProcessPage& own, const Ending& ending) {
  Verdict passed;
  passed.state = State::kPassed;
  if (own.meant_to_die.load()) return {passed, 0};
  const State state = own.state.load();
  if (own.crashed.load() || (!ending.hung && WIFSIGNALED(ending.status))) {
    // Some signals end a process without a word of its own.
    const Call call = own.crashed.load() ? own.crashed_in.load() : ending.call;
    return failed(
        6, call == Call::kNone ? "no crash" : fmt::format("{} returns", name(call)),
        fmt::format("the process crashed {}: {}", where(call), strsignal(WTERMSIG(ending.status))),
        call);
  }
  if (!ending.hung && state == State::kRunning) {
    return failed(
        6, "the plugin does not end the process",
        fmt::format("it ended {} with status {}", where(ending.call), WEXITSTATUS(ending.status)),
        ending.call);
  }
  if (ending.hung && ending.call != Call::kNone) {
    return failed(
        5, fmt::format("{} returns", name(ending.call)),
        fmt::format("it hung: still in {} after {:.1f} s", name(ending.call), ending.seconds),
        ending.call);
  }
  if (state == State::kFailed) {
    // The other may have failed only because this one was gone.
    return failed(ending.failed_first ? 4 : 3, own.expected.data(), own.came.data());
  }
  if (ending.hung && !ending.stopped) {
    return failed(2, "the check ends in its time",
                  fmt::format("not after {:.1f} s", ending.seconds));
  }
  if (state == State::kSkipped) {
    Verdict skipped;
    skipped.state = State::kSkipped;
    skipped.missing = own.expected.data();
    return {skipped, 1};
  }
  return {passed, 0};
}

}  // namespace

Verdict Supervisor::run(int processes, std::chrono::milliseconds limit,
                        const std::function<void(Session&)>& body) {
  page_.clear();
  Page& page = page_.get();
  const Clock::time_point begin = Clock::now();
  std::vector<Child> children;
  children.reserve(static_cast<std::size_t>(processes));
  for (int i = 0; i < processes; ++i) children.push_back(start(options_, page, i, body));

  Clock::time_point deadline = begin + limit;
  bool stopping = false;
  std::size_t running = children.size();
  while (running > 0 && Clock::now() < deadline) {
    running = 0;
    for (std::size_t i = 0; i < children.size(); ++i) {
      Child& child = children[i];
      if (child.ended) continue;
      child.ended = waitpid(child.pid, &child.status, WNOHANG) == child.pid;
      if (!child.ended) ++running;
      // The other need not wait for one that is gone without a word.
      if (child.ended && page.processes[i].state.load() == State::kRunning &&
          !page.processes[i].meant_to_die.load()) {
        page.stop.store(true);
      }
    }
    if (!stopping && page.stop.load()) {
      stopping = true;
      deadline = std::min(deadline, Clock::now() + kGrace);
    }
    if (running > 0) usleep(300);
  }
  // Where those that still run are, before they are ended.
  std::vector<Call> calls;
  for (std::size_t i = 0; i < children.size(); ++i) {
    calls.push_back(present_call(page.processes[i]));
    if (children[i].ended) continue;
    kill(-children[i].pid, SIGKILL);
    kill(children[i].pid, SIGKILL);
  }

  Verdict verdict;
  verdict.state = State::kPassed;
  int weight = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    Child& child = children[i];
    const bool hung = !child.ended;
    if (hung) waitpid(child.pid, &child.status, 0);
    ProcessPage& own = page.processes[i];
    const Ending ending{hung,
                        stopping,
                        child.status,
                        calls[i],
                        page.first_failed.load() == static_cast<int>(i) + 1,
                        std::chrono::duration<double>(Clock::now() - begin).count()};
    Judged judged = judge(own, ending);
    if (judged.weight <= weight) continue;
    weight = judged.weight;
    verdict = std::move(judged.verdict);
    verdict.warning = own.warning.data();
    if (processes > 1 && verdict.state == State::kFailed) verdict.side = kSides[i];
  }
  verdict.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return verdict;
}

}  // namespace ropewalk::check_plugin
