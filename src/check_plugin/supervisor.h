// Runs what uses the plugin in children, and tells what came of it, also when they crash or hang.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

struct Verdict {
  State state = State::kFailed;  ///< kPassed, kFailed or kSkipped
  std::string expected;          ///< of kFailed
  std::string came;              ///< of kFailed
  std::string missing;           ///< of kSkipped
  std::string call;              ///< in which a child crashed or hung, else empty
  std::string side;              ///< "sender" or "receiver" where there are two children
  std::string warning;           ///< the last warning in the plugin's log
  double seconds = 0;
};

/// Threads: the caller has one, since children are forked. The page is cleared first and keeps what
/// the children wrote.
class Supervisor {
 public:
  explicit Supervisor(const Options& options) : options_(options) {}
  /// @param limit after which children that still run are killed: they hang
  Verdict run(int processes, std::chrono::milliseconds limit,
              const std::function<void(Session&)>& body);
  [[nodiscard]] Page& page() noexcept { return page_.get(); }

 private:
  const Options& options_;
  SharedPage page_;
};

}  // namespace ropewalk::check_plugin
