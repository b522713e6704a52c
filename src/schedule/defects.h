// Where the checker's parts put what they find.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace ropewalk::schedule {

/// How bad, the worst first: this orders the report.
enum class Severity {
  kForm,      ///< the schedule says nothing that could run
  kDeadlock,  ///< it would hang
  kResult,    ///< it would give a wrong result
  kResidue,   ///< it would leave chunks that the next round takes for its own
  kMark,      ///< `finished` on the wrong step
};

class Defects {
 public:
  static constexpr std::size_t kMostReported = 16;

  void add(Severity severity, std::string sentence) {
    // Each kind may fill the report, none may fill the memory.
    std::vector<std::string>& kind = found_[static_cast<std::size_t>(severity)];
    if (kind.size() < kMostReported) kind.push_back(std::move(sentence));
    any_ = true;
  }
  /// True when another defect of this kind would not be reported: spares making its sentence.
  [[nodiscard]] bool full(Severity severity) const {
    return found_[static_cast<std::size_t>(severity)].size() >= kMostReported;
  }
  [[nodiscard]] bool any() const { return any_; }

  std::vector<std::string> take() {
    std::vector<std::string> all;
    for (std::vector<std::string>& kind : found_) {
      for (std::string& sentence : kind) {
        if (all.size() < kMostReported) all.push_back(std::move(sentence));
      }
    }
    return all;
  }

 private:
  std::vector<std::string> found_[5];
  bool any_ = false;
};

}  // namespace ropewalk::schedule
