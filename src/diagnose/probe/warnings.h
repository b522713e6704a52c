// The warnings of a transport while it is probed.
#pragma once

#include <string>

namespace ropewalk::diagnose::probe {

/// Hears the log's warnings of all threads, as long as it lives. One at a time.
class HeardWarnings {
 public:
  HeardWarnings();
  ~HeardWarnings();
  HeardWarnings(const HeardWarnings&) = delete;
  HeardWarnings& operator=(const HeardWarnings&) = delete;

  /// Those that came so far, each once, joined by "; ". Empty when there was none.
  [[nodiscard]] std::string text() const;
};

}  // namespace ropewalk::diagnose::probe
