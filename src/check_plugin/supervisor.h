// Runs code that uses the plugin in child processes, and reports the outcome, also if they crash or
// hang.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

/// A warning of the plugin.
struct Logged {
  std::string side;  ///< as Verdict's
  std::string call;  ///< in which it was logged, else empty
  std::string text;
};

struct Verdict {
  State state = State::kFailed;  ///< kPassed, kFailed or kSkipped
  std::string expected;          ///< of kFailed
  std::string came;              ///< of kFailed
  std::string missing;           ///< of kSkipped
  std::string call;              ///< in which a child crashed or hung, else empty
  std::string side;              ///< "sender" or "receiver" where there are two children
  std::vector<Logged> log;       ///< what the plugin logged as warnings during the rule
  std::size_t log_left_out = 0;  ///< warnings that did not fit
  double seconds = 0;
};

/// Threads: the caller has one, since children are forked. The page is cleared first and keeps what
/// the children wrote.
class Supervisor {
 public:
  /// @param beside another, whose children may run meanwhile
  explicit Supervisor(const Options& options, const Supervisor* beside = nullptr);

  /// @param limit after which all children are ended. One that stays in a single call for as long
  ///     as a wait may take (Options::timeout) hangs, and ends the run then.
  Verdict run(int processes, std::chrono::milliseconds limit,
              const std::function<void(Session&)>& body);

  /// The two halves of run(): the children run in between. `body` is copied into the children.
  void start(int processes, std::chrono::milliseconds limit,
             const std::function<void(Session&)>& body);
  Verdict finish();

  [[nodiscard]] Page& page() noexcept { return page_.get(); }

 private:
  struct Child {
    pid_t pid = -1;
    bool ended = false;
    int status = 0;
    // Since when which of its threads is in the same call, as far as it was seen.
    std::array<Note, kMostThreads> notes{};
    std::array<Clock::time_point, kMostThreads> since{};
  };

  void start_child(int process, const std::function<void(Session&)>& body);
  bool poll_child(std::size_t number);
  Call stuck(std::size_t number, std::chrono::milliseconds at_least);
  bool anyone_stuck(std::chrono::milliseconds at_least);
  void wait_for_children();
  Verdict judge_children(const std::vector<Call>& calls);

  const Options& options_;
  const Supervisor* beside_;
  SharedPage page_;
  std::vector<Child> children_;
  Clock::time_point begin_;
  Clock::time_point deadline_;
  bool stopping_ = false;
};

}  // namespace ropewalk::check_plugin
