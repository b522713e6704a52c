#include "check_plugin/supervisor.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX's
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "check_plugin/processes.h"
#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

constexpr std::array<const char*, kMostProcesses> kSides = {"sender", "receiver"};
// Time for a child to finish after the other has failed.
constexpr std::chrono::milliseconds kGrace{1500};
constexpr useconds_t kPollUs = 300;

void fail(Page& page, int process, const std::string& expected, const std::string& came) {
  ProcessPage& own = page.processes[static_cast<std::size_t>(process)];
  put_text(own.expected, expected);
  put_text(own.came, came);
  own.state.store(State::kFailed);
  int none = 0;
  page.first_failed.compare_exchange_strong(none, process + 1);
  page.stop.store(true);
}

void child_main(const Options& options, Page& page, int process, bool has_other,
                const std::function<void(Session&)>& body) {
  ProcessPage& own = page.processes[static_cast<std::size_t>(process)];
  own.pid.store(getpid());
  note_crashes(own);
  try {
    Session session(options, page, process);
    body(session);
    if (has_other) session.meet_at_end();
    own.state.store(State::kPassed);
    own.ended.store(Clock::now().time_since_epoch().count());
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

// How a child came to its end.
struct Ending {
  bool hung;     // it was killed
  bool stopped;  // the other had failed before
  int status;    // as waitpid gives it
  Call call;     // that it was in; if it hung: that it did not come out of
  bool failed_first;
  double seconds;
};

// The verdict of one child. The most severe one is the rule's: a crash, then a hang in a call, then
// a failure that a child found.
struct Judged {
  Verdict verdict;
  int weight = 0;
};

std::string where(Call call, const std::string& thread) {
  if (!thread.empty()) return fmt::format("in a thread that the plugin started (\"{}\")", thread);
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
    // Some signals end a process before it can report.
    const Call call = own.crashed.load() ? own.crashed_in.load() : ending.call;
    return failed(6, call == Call::kNone ? "no crash" : fmt::format("{} returns", name(call)),
                  fmt::format("the process crashed {}: {}", where(call, own.crashed_thread.data()),
                              strsignal(WTERMSIG(ending.status))),
                  call);
  }
  if (!ending.hung && state == State::kRunning) {
    return failed(6, "the plugin does not end the process",
                  fmt::format("it ended {} with status {}", where(ending.call, ""),
                              WEXITSTATUS(ending.status)),
                  ending.call);
  }
  if (ending.hung && ending.call != Call::kNone) {
    return failed(
        5, fmt::format("{} returns", name(ending.call)),
        fmt::format("it hung: still in {} after {:.1f} s", name(ending.call), ending.seconds),
        ending.call);
  }
  if (state == State::kFailed) {
    // The other may have failed only because this one had died.
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

void fail_for_processes(Verdict& verdict, const ProcessPage& own,
                        const std::vector<Process>& left) {
  std::vector<std::string> names;
  for (const Process& process : left) {
    names.push_back(fmt::format("{} (pid {})", process.name, process.pid));
  }
  const Call call = own.started_process.load();
  verdict.state = State::kFailed;
  verdict.call = name(call);
  verdict.expected = "no process that outlives the program";
  verdict.came =
      fmt::format("{} still ran when it had ended{}", fmt::join(names, ", "),
                  call == Call::kNone ? "" : fmt::format("; the first came in {}", name(call)));
}

}  // namespace

Supervisor::Supervisor(const Options& options, const Supervisor* beside)
    : options_(options), beside_(beside) {
  adopt_orphans();
}

void Supervisor::start_child(int process, const std::function<void(Session&)>& body) {
  Child& child = children_[static_cast<std::size_t>(process)];
  child.pid = fork();
  if (child.pid < 0) throw system_error(errno, "starting a process");
  if (child.pid == 0) {
    // A group of its own, so that what the plugin starts ends with it.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(STDERR_FILENO, STDOUT_FILENO);  // standard output is for the report
    child_main(options_, page_.get(), process, children_.size() > 1, body);
    _exit(0);
  }
}

void Supervisor::start(int processes, std::chrono::milliseconds limit,
                       const std::function<void(Session&)>& body) {
  page_.clear();
  begin_ = Clock::now();
  deadline_ = begin_ + limit;
  stopping_ = false;
  children_.assign(static_cast<std::size_t>(processes), {});
  for (int i = 0; i < processes; ++i) start_child(i, body);
}

// @return whether it still runs
bool Supervisor::poll_child(std::size_t number) {
  Child& child = children_[number];
  if (child.ended) return false;
  child.ended = waitpid(child.pid, &child.status, WNOHANG) == child.pid;
  if (!child.ended) return true;
  // The other need not wait for one that has died.
  const ProcessPage& own = page_.get().processes[number];
  if (own.state.load() == State::kRunning && !own.meant_to_die.load()) page_.get().stop.store(true);
  return false;
}

// The call that a thread of a child has been in for so long; several: the first.
Call Supervisor::stuck(std::size_t number, std::chrono::milliseconds at_least) {
  Child& child = children_[number];
  const ProcessPage& own = page_.get().processes[number];
  const Clock::time_point now = Clock::now();
  Call found = Call::kNone;
  const int threads = std::min(own.threads.load(), kMostThreads);
  for (std::size_t i = 0; i < static_cast<std::size_t>(threads); ++i) {
    const Note note = own.notes[i].load();
    if (note != child.notes[i]) {
      child.notes[i] = note;
      child.since[i] = now;
    }
    const bool is_stuck = call_of(note) != Call::kNone && now - child.since[i] >= at_least;
    if (is_stuck && found == Call::kNone) found = call_of(note);
  }
  return found;
}

bool Supervisor::anyone_stuck(std::chrono::milliseconds at_least) {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (!children_[i].ended && stuck(i, at_least) != Call::kNone) return true;
  }
  return false;
}

void Supervisor::wait_for_children() {
  const Page& page = page_.get();
  // Between start() and finish() nobody looked.
  Clock::time_point last = std::max(deadline_, Clock::now() + options_.timeout);
  for (;;) {
    bool running = false;
    for (std::size_t i = 0; i < children_.size(); ++i) running = poll_child(i) || running;
    if (!running || Clock::now() > last) return;
    if (!stopping_ && page.stop.load()) {
      stopping_ = true;
      last = std::min(last, Clock::now() + kGrace);
    }
    // A wait of the other for as long may have ended a moment ago: then half of it is a hang too.
    if (anyone_stuck(stopping_ ? options_.timeout / 2 : options_.timeout)) return;
    usleep(kPollUs);
  }
}

Verdict Supervisor::judge_children(const std::vector<Call>& calls) {
  const Page& page = page_.get();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  Verdict verdict;
  verdict.state = State::kPassed;
  std::vector<Logged> log;
  std::size_t left_out = 0;
  int weight = 0;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    const bool hung = !child.ended;
    if (hung) waitpid(child.pid, &child.status, 0);
    const ProcessPage& own = page.processes[i];
    const std::string side = children_.size() > 1 ? kSides[i] : "";
    const Ending ending{hung,
                        stopping_,
                        child.status,
                        calls[i],
                        page.first_failed.load() == static_cast<int>(i) + 1,
                        seconds};
    Judged judged = judge(own, ending);
    if (judged.weight > weight) {
      weight = judged.weight;
      verdict = std::move(judged.verdict);
      if (verdict.state == State::kFailed) verdict.side = side;
    }
    const auto lines = own.log.in_order();
    for (const Log::Line* line : lines) {
      log.push_back({side, std::string(name(line->call)), line->text.data()});
    }
    left_out += own.log.count.load() - lines.size();
  }
  verdict.log = std::move(log);
  verdict.log_left_out = left_out;
  return verdict;
}

Verdict Supervisor::finish() {
  wait_for_children();
  std::vector<Call> calls;
  for (std::size_t i = 0; i < children_.size(); ++i) {
    const bool ended = children_[i].ended;
    // Where it was at its end, or where it hangs.
    calls.push_back(stuck(i, ended ? std::chrono::milliseconds(0) : options_.timeout / 2));
    if (ended) continue;
    kill(-children_[i].pid, SIGKILL);
    kill(children_[i].pid, SIGKILL);
  }
  Verdict verdict = judge_children(calls);
  children_.clear();

  std::vector<pid_t> spared;
  if (beside_ != nullptr) {
    for (const Child& child : beside_->children_) spared.push_back(child.pid);
  }
  const ProcessPage& first = page_.get().processes[0];
  const bool must_leave_none = first.must_leave_none.load();
  const std::vector<Process> left =
      end_orphans(spared, std::chrono::milliseconds(must_leave_none ? 100 : 0));
  if (verdict.state == State::kPassed && must_leave_none && !left.empty()) {
    fail_for_processes(verdict, first, left);
  }
  // Of the first child where it passed: nobody may have looked for long.
  const Clock::time_point ended{Clock::duration(first.ended.load())};
  verdict.seconds =
      std::chrono::duration<double>((ended > begin_ ? ended : Clock::now()) - begin_).count();
  return verdict;
}

Verdict Supervisor::run(int processes, std::chrono::milliseconds limit,
                        const std::function<void(Session&)>& body) {
  start(processes, limit, body);
  return finish();
}

}  // namespace ropewalk::check_plugin
