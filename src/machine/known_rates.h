// Rates of NICs that were measured in this process.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/mutex.h"

namespace ropewalk::machine {

/// By the measured NICs: a text that names the NICs of all hosts.
///
/// Threads: any number at once.
class KnownRates {
 public:
  /// Of each rail, bytes/s; empty when they were not measured.
  std::vector<double> get(const std::string& nics);
  void keep(const std::string& nics, const std::vector<double>& rates);

 private:
  Mutex mutex_;
  std::map<std::string, std::vector<double>> rates_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::machine
