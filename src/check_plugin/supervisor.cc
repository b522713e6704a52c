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

std::string where(Call call) {
  return call == Call::kNone ? "outside the plugin's functions" : fmt::format("in {}", name(call));
}

}  // namespace

Verdict Supervisor::run(int processes, std::chrono::milliseconds limit,
                        const std::function<void(Session&)>& body) {
  page_.clear();
  Page& page = page_.get();
  const Clock::time_point begin = Clock::now();
  std::vector<Child> children;
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
  // What says most wins: a crash, then a hang in a call, then what a child found.
  int weight = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    Child& child = children[i];
    const bool hung = !child.ended;
    if (hung) waitpid(child.pid, &child.status, 0);
    ProcessPage& own = page.processes[i];
    Verdict found;
    int found_weight = 0;
    const State state = own.state.load();
    if (own.meant_to_die.load()) {
      found.state = State::kPassed;
    } else if (own.crashed.load() || (!hung && WIFSIGNALED(child.status))) {
      const Call call = own.crashed_in.load();
      found_weight = 6;
      found.call = name(call);
      found.expected = call == Call::kNone ? "no crash" : fmt::format("{} returns", name(call));
      found.came =
          fmt::format("the process crashed {}: {}", where(call), strsignal(WTERMSIG(child.status)));
    } else if (!hung && state == State::kRunning) {
      found_weight = 6;
      found.call = name(calls[i]);
      found.expected = "the plugin does not end the process";
      found.came =
          fmt::format("it ended {} with status {}", where(calls[i]), WEXITSTATUS(child.status));
    } else if (hung && calls[i] != Call::kNone) {
      found_weight = 5;
      found.call = name(calls[i]);
      found.expected = fmt::format("{} returns", found.call);
      found.came = fmt::format("it hung: still in {} after {:.1f} s", found.call,
                               std::chrono::duration<double>(Clock::now() - begin).count());
    } else if (state == State::kFailed) {
      // The other may have failed only because this one was gone.
      found_weight = page.first_failed.load() == static_cast<int>(i) + 1 ? 4 : 3;
      found.expected = own.expected.data();
      found.came = own.came.data();
    } else if (hung && !stopping) {
      found_weight = 2;
      found.expected = "the check ends in its time";
      found.came = fmt::format("not after {:.1f} s",
                               std::chrono::duration<double>(Clock::now() - begin).count());
    } else if (state == State::kSkipped) {
      found_weight = 1;
      found.state = State::kSkipped;
      found.missing = own.expected.data();
    } else {
      found.state = State::kPassed;
    }
    if (found_weight > weight) {
      weight = found_weight;
      verdict = std::move(found);
      verdict.warning = own.warning.data();
      if (processes > 1 && verdict.state == State::kFailed) verdict.side = kSides[i];
    }
  }
  verdict.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return verdict;
}

}  // namespace ropewalk::check_plugin
